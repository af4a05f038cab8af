/* The words: headline figures, how a number was made, what the schedules are, what the run was. */

const BENEFIT = ['nepe', 'achieved_budget']; // measures whose headline is the share of the benefit that is recovered

/** The headline figures under the chosen measure, as {figure, error, caption, how, role}. */
function headline(state) {
  const { domain, schedule, budget, metric } = state;
  const achieved = cell(domain, schedule, budget, 'achieved_budget');
  const paid = { figure: percent(Number(budgetFor(domain, schedule, budget))), caption: 'of the projections paid', how: achieved ? `${percent(achieved.mean, 1)} of the steps, measured` : 'as budgeted' };
  const result = BENEFIT.includes(metric) ? recovered(domain, schedule, budget) : measured(domain, schedule, budget, metric);
  if (schedule !== 'periodic') return [paid, result, besidePeriodic(state), won(state)];
  const c = domain.numbers.concentration;
  const value = cell(domain, schedule, budget, BENEFIT.includes(metric) ? 'nepe' : metric);
  return [paid, result,
    { figure: c && isNumber(c.mean) ? percent(c.mean) : '–', error: c && isNumber(c.se) ? `± ${percent(c.se, 1)}` : null, caption: `of defect in ${percent(c?.q ?? 0.2)} of steps`, how: 'the more, the more timing gains' },
    { figure: value && isNumber(value.n) ? String(value.n) : '–', caption: 'evaluation seeds', how: 'same noise for every schedule' }];
}

function recovered(domain, schedule, budget) {
  const nepe = cell(domain, schedule, budget, 'nepe');
  return {
    figure: nepe ? percent(1 - nepe.mean) : '–', error: nepe && isNumber(nepe.se) ? `± ${percent(nepe.se, 1)}` : null, role: 'key',
    caption: 'of the benefit recovered', how: nepe ? `1 − NEPE (${plusMinus(nepe)})` : 'NEPE is degenerate here',
  };
}

function measured(domain, schedule, budget, metric) {
  const value = cell(domain, schedule, budget, metric);
  return {
    figure: number(value?.mean), error: value && isNumber(value.se) ? `± ${number(value.se)}` : null, role: 'key',
    caption: metricLabel(metric), how: METRICS[metric]?.unit ?? 'the domain’s own judgement of final states',
  };
}

function besidePeriodic({ domain, schedule, budget, metric }) {
  const by = BENEFIT.includes(metric) ? 'nepe' : metric;
  const periodic = cell(domain, 'periodic', budgetFor(domain, schedule, budget), by);
  const { mean: gain, se } = improvementOf(domain, schedule, budget, by) ?? {};
  const same = isNumber(gain) && Math.abs(gain) < 0.0005;
  const lowerIsBetter = by in METRICS; // of a domain's own judgement the page does not know which way is up
  const what = lowerIsBetter ? ' error' : '';
  return {
    figure: isNumber(gain) ? percent(Math.abs(gain)) : '–', error: isNumber(se) ? `± ${percent(se, 1)}` : null, role: lowerIsBetter && gain < -0.0005 ? 'bad' : '',
    caption: same ? 'difference from periodic' : gain < 0 ? `more${what} than periodic` : `less${what} than periodic`,
    how: periodic ? `its ${metricLabel(by)} is ${plusMinus(periodic)}` : 'no periodic runs at this budget',
  };
}

function won({ domain, schedule, metric }) {
  const part = { nepe: 'pathwise', achieved_budget: 'pathwise', path_error: 'pathwise', endpoint: 'endpoint' }[metric];
  const wins = domain.numbers.win_rate?.[schedule]?.[part];
  return { figure: wins ? percent(wins.mean) : '–', error: wins && isNumber(wins.se) ? `± ${percent(wins.se, 1)}` : null, caption: 'won against periodic', how: wins ? `${wins.n} pairs; ${percent(winLimit(domain, schedule))} is the limit` : 'not compared' };
}

function writeHeadline(state) {
  const schedule = scheduleOf(state.schedule);
  document.getElementById('choice').textContent = `${capital(schedule.label)} on ${state.domain.label}`;
  const text = (state.domain.extra.summary ?? '').replace(/^(so3|se3)\b/, (name) => domainLabel(name));
  document.getElementById('domain-summary').textContent = text ? `${capital(text).replace(/\.$/, '')}.` : '';
  const figures = headline(state);
  document.getElementById('figures').replaceChildren(...figures.map((f) => html('div', { class: f.role || null },
    html('dt', {}, f.caption), html('dd', {}, f.figure, f.error ? html('small', {}, f.error) : null), html('p', { class: 'how' }, f.how))));
  document.getElementById('final-samples').textContent = finalWords(state);
  document.getElementById('spoken').textContent = `${schedule.label} on ${state.domain.label}: pays ${figures[0].figure} of the projections; ${figures[1].figure} ${figures[1].caption}.`;
}

/** What the final samples are worth, in words: near full projection or not, as a distribution, and by the domain's own measure. */
function finalWords({ domain, schedule, budget }) {
  const at = budgetFor(domain, schedule, budget);
  const end = cell(domain, schedule, budget, 'endpoint');
  const told = domain.numbers.distribution?.[schedule]?.[at];
  const judged = Object.entries(domain.numbers.quality?.[schedule]?.[at] ?? {});
  const words = [];
  if (end && schedule !== 'stepwise') words.push(`Final samples are ${plusMinus(end)} from those of full projection with the same noise.`);
  if (told) {
    const seen = isNumber(told.shift) ? `with ${told.n} samples a shift of ${number(told.shift)} of their spread would have been seen` : `${told.n} samples are too few to see any shift`;
    const full = Object.values(domain.numbers.distribution?.stepwise ?? {})[0];
    const alike = schedule !== 'stepwise' && full?.p <= 0.05 ? ' So do those of full projection on the same seeds: two small sets of seeds may differ by chance.' : '';
    words.push(told.p <= 0.05
      ? `As a distribution they differ from those of full projection on other seeds, p = ${number(told.p)}: energy distance ${number(told.value)}, noise up to ${number(told.floor)}.${alike}`
      : `As a distribution they cannot be told from those of full projection on other seeds, p = ${number(told.p)}; ${seen}.`);
  }
  if (judged.length) words.push(`By the domain’s own measures: ${judged.map(([name, value]) => `${name.replaceAll('_', ' ')} ${plusMinus(value)}`).join(', ')}.`);
  return words.join(' ');
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/* ------------------------------------------------------------------ how the number was made */

const MATH = 'http://www.w3.org/1998/Math/MathML';

function math(tag, ...children) {
  const node = document.createElementNS(MATH, tag);
  if (tag === 'math') node.setAttribute('display', 'block');
  node.append(...children);
  return node;
}
const mi = (text) => math('mi', text);
const mo = (text) => math('mo', text);
const mtext = (text) => math('mtext', text);
const pathErrorOf = (name) => math('mrow', math('msub', mi('E'), mtext('path')), mo('('), mtext(name), mo(')'));

const FORMULAS = {
  nepe: () => [mi('NEPE'), mo('='), math('mfrac', math('mrow', pathErrorOf('schedule'), mo(MINUS), pathErrorOf('stepwise')), math('mrow', pathErrorOf('terminal'), mo(MINUS), pathErrorOf('stepwise')))],
  path_error: () => [math('msub', mi('E'), mtext('path')), mo('='), math('munder', mo('∑'), mi('t')), mi('d'), mo('('), math('msub', mi('x'), math('mrow', mi('t'), mo('+'), math('mn', '1'))), mo(','), mi('M'), mo(')')],
  endpoint: () => [math('msub', mi('E'), mtext('end')), mo('='), mi('ρ'), mo('('), math('msub', mi('x'), mi('T')), mo(','), math('msubsup', mi('x'), mi('T'), mtext('stepwise')), mo(')')],
  achieved_budget: () => [math('mfrac', math('mn', '1'), mi('T')), math('munder', mo('∑'), mi('t')), mi('σ'), mo('('), mi('t'), mo(')')],
};
const MEANING = {
  nepe: 'Each seed is run under this schedule, with a projection after every step, and with none before the end, always with the same noise. A path’s error is the distance from the constraint, added up over its steps. NEPE places it between the two extremes: 0 is as good as projecting always, 1 as bad as projecting only at the end.',
  path_error: 'The distance from the constraint of each state that was kept, after the decision to project or not, added up over all steps. ' + (CLOSING_IS_PAID ? 'At the last one every sample is projected, and the budget pays for it.' : 'The closing projection is not credited.'),
  endpoint: 'The domain’s own distance between the final state and that of the paired stepwise rollout with the same noise. Both are feasible; they need not be the same.',
  achieved_budget: 'How many projections were made during the rollout, as a share of its steps. ' + (CLOSING_IS_PAID ? 'The closing projection, which makes the result feasible, is one of them, for every schedule alike.' : 'A closing projection that makes the result feasible is counted apart, for every schedule alike.'),
};

function writeMade(place, state) {
  const { domain, metric, schedule, budget } = state;
  const value = cell(domain, schedule, budget, metric);
  const name = scheduleOf(schedule).label;
  const label = metricLabel(metric);
  const told = (PAGE.metrics ?? []).find((m) => m.key === metric)?.summary;
  const left = html('div', {},
    html('p', {}, html('strong', {}, `${capital(label)} ${plusMinus(value)}`), ` is a mean over n = ${value?.n ?? '–'} evaluation seeds, ± its standard error (their standard deviation divided by √n).`),
    html('p', {}, MEANING[metric] ?? told ?? ''));
  if (FORMULAS[metric]) left.append(math('math', ...FORMULAS[metric]()));
  left.append(...workedExample(state));
  const facts = [
    ['domain', `${domain.label} (${domain.name})`],
    ['schedule', `${name} (${schedule})`],
    ['budget', budgetFor(domain, schedule, budget)],
    ['steps T', domain.extra.n_steps ?? domain.numbers.n_steps],
    ['evaluation', seedWords(configOf('seeds'))],
    ['calibration', seedWords(configOf('calibration_seeds'), 'held out, never evaluated on')],
    ['left out', isNumber(domain.numbers.degenerate) ? `${domain.numbers.degenerate} degenerate values` : null],
    ...Object.entries(domain.extra.settings ?? {}).filter(([key]) => key !== 'n_steps').map(([key, v]) => [key, typeof v === 'object' ? JSON.stringify(v) : isNumber(v) ? String(Number(v.toPrecision(6))) : String(v)]),
  ].filter(([, v]) => v != null && v !== '');
  const rows = (LINKS.files ?? []).filter((file) => file === `rows/${domain.name}.parquet`);
  const right = html('div', { class: 'sum' }, html('dl', { class: 'facts' }, facts.flatMap(([k, v]) => [html('dt', {}, k), html('dd', {}, String(v))])),
    rows.length ? html('p', { class: 'note' }, 'Every rollout behind it, one row each: ', rows.map((file) => html('a', { href: file }, file))) : null);
  place.replaceChildren(left, right);
}

const configOf = (key) => (SUMMARY.config ?? {})[key] ?? SUMMARY.config?.study?.[key];

function seedWords(seeds, more) {
  if (seeds == null) return null;
  const text = Array.isArray(seeds) ? (seeds.length > 8 ? `${seeds.length} seeds, ${seeds[0]} to ${seeds.at(-1)}` : `seeds ${seeds.join(', ')}`) : `${seeds} seeds`;
  return more ? `${text}, ${more}` : text;
}

/** The formula with the numbers of the rollout that is drawn: a check anybody can redo. */
function workedExample(state) {
  const { domain, schedule, budget, seed, metric } = state;
  const [mine, stepwise, terminal] = [[schedule, budget], ['stepwise', '1.00'], ['terminal', '0.00']].map(([key, b]) => exampleOf(domain, key, b, seed));
  if (metric !== 'nepe' || ![mine, stepwise, terminal].every((e) => isNumber(e?.path_error))) return [];
  const span = terminal.path_error - stepwise.path_error;
  if (!(span > 1e-9)) return [];
  const e = (example) => math('mn', number(example.path_error));
  const result = (mine.path_error - stepwise.path_error) / span;
  return [
    html('p', {}, `For seed ${mine.seed}, the rollout drawn above${mine.budget === budgetFor(domain, schedule, budget) ? '' : ` (at budget ${mine.budget})`}:`),
    math('math', math('mfrac', math('mrow', e(mine), mo(MINUS), e(stepwise)), math('mrow', e(terminal), mo(MINUS), e(stepwise))), mo('='), math('mn', number(result))),
  ];
}

/* ------------------------------------------------------------------ what stays the same */

function writeAbout() {
  document.getElementById('about').replaceChildren(...SCHEDULES.map((s) => html('div', {}, html('dt', {}, swatch(s), s.label), html('dd', {}, s.summary))));
}

function writeRun() {
  const config = SUMMARY.config ?? {};
  const facts = [
    ['run', LINKS.name], ['preset', PAGE.preset ?? config.preset], ['trimtab', PAGE.trimtab ?? SUMMARY.trimtab],
    ['time', isNumber(LINKS.seconds) ? `${number(LINKS.seconds, 1)} seconds` : null],
    ['domains', DOMAINS.join(', ')], ['schedules', SCHEDULES.map((s) => s.key).join(', ')],
  ].filter(([, v]) => v != null);
  const files = LINKS.files ?? [];
  const snippet = 'import pyarrow.parquet as pq\n\n'
    + `rows = pq.read_table("${`rows/${DOMAINS[0]}.parquet`}").to_pandas()\n`
    + 'rows.groupby(["schedule", "budget"])["nepe"].agg(["mean", "sem", "count"])';
  document.getElementById('run').replaceChildren(
    html('dl', { class: 'facts', style: 'margin-top:10px' }, facts.flatMap(([k, v]) => [html('dt', {}, k), html('dd', {}, String(v))])),
    html('p', { class: 'note' }, 'Every figure on this page can be made again from the rows, without running anything:'),
    html('pre', { tabindex: 0 }, snippet),
    html('ul', { class: 'files' }, files.map((file) => html('li', {}, html('a', { href: file }, file)))),
    html('details', {}, html('summary', {}, 'Configuration'), html('pre', { tabindex: 0 }, JSON.stringify(config, null, 2))));
  document.getElementById('run-name').textContent = LINKS.name ? ` / ${LINKS.name}` : '';
}
