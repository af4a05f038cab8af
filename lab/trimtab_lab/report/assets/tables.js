/* The tables: error at the chosen budget for every domain, and the paired comparisons. */

function table(caption, groups, heads, rows, kind = null) {
  return html('table', { class: kind }, html('caption', { class: 'spoken' }, caption),
    html('thead', {},
      groups ? html('tr', { class: 'groups' }, groups.map(([text, span]) => html('th', { colspan: span, scope: text ? 'colgroup' : null }, text))) : null,
      html('tr', {}, heads.map((head) => html('th', { scope: 'col', class: head.class ?? null }, head.text ?? head)))),
    html('tbody', {}, rows.map(({ name, chosen, cells }) => html('tr', { class: chosen ? 'chosen' : null },
      html('th', { scope: 'row' }, name), cells.map((c) => html('td', { class: c.class ?? null }, c.text, c.small ? html('small', {}, ` ${c.small}`) : null))))));
}

const valueCell = (value) => ({ text: value ? number(value.mean) : '–', small: value && isNumber(value.se) ? `± ${number(value.se, 3, value.mean)}` : null });

/** An improvement with its 95% interval, or ± a standard error; coloured only if it excludes 0. */
function gainCell(gain) {
  if (!gain) return { text: '–' };
  if ('low' in gain && !isNumber(gain.low)) return { text: percent(gain.mean), small: 'undecided' };
  const [low, high] = 'low' in gain ? [gain.low, gain.high] : [gain.mean - 2 * gain.se, gain.mean + 2 * gain.se];
  const clear = isNumber(gain.se) && (low > 0 || high < 0);
  const small = 'low' in gain ? `${percent(low).replace('%', '')} to ${percent(high)}` : isNumber(gain.se) ? `± ${percent(gain.se)}` : null;
  return { text: percent(gain.mean), small, class: clear ? (gain.mean > 0 ? 'better' : 'worse') : null };
}

/** A figure the paper reports, [value, standard error], beside ours. */
const paperCell = (pair) => (Array.isArray(pair) ? { text: percent(pair[0]), small: isNumber(pair[1]) ? `± ${percent(pair[1])}` : null, class: 'said' } : { text: '–' });

function writeErrorTable(place, note, title, state) {
  const key = comparedKey(state.schedule);
  const label = scheduleOf(key)?.label ?? 'adaptive';
  const budget = state.budget;
  const withPaper = key === 'adaptive:paper' && Number(budget) === Number(PAGE.paper_budget) && Object.values(PAGE.domains ?? {}).some((d) => d.paper?.table1);
  const width = withPaper ? 4 : 3;
  const metrics = [['nepe', 'NEPE'], ['endpoint', 'Endpoint distance']];
  const heads = ['Domain', ...metrics.flatMap(() => ['periodic', label, 'improvement', ...(withPaper ? ['in the paper'] : [])])];
  const rows = domainsWith(state.dynamics).map((name) => {
    const domain = domainOf(name);
    const cells = metrics.flatMap(([metric]) => {
      const out = [...['periodic', key].map((k) => valueCell(cell(domain, k, budget, metric))), gainCell(improvementOf(domain, key, budget, metric))];
      if (withPaper) out.push(paperCell(domain.extra.paper?.table1?.[metric]?.improvement));
      return out;
    });
    return { name: domain.label, chosen: name === state.domain.name, cells };
  });
  title.textContent = `Error at ${percent(Number(budget))} of the projections, all domains`;
  place.replaceChildren(table(`Periodic and ${label} at budget ${budget}`, [['', 1], ...metrics.map(([, text]) => [text, width])], heads, rows));
  note.textContent = `Mean ± standard error over seeds. Improvement compares the means of the same seeds, with a 95% interval at the table’s budget; it is coloured only if that excludes 0, and undecided if a few samples decide the mean.${withPaper ? ' “In the paper” is the improvement the paper reports for its rule.' : ''}`;
}

function writeWinTable(place, note, state) {
  const key = comparedKey(state.schedule);
  const rate = (value) => ({ text: value && isNumber(value.mean) ? percent(value.mean) : '–', small: value && isNumber(value.se) ? `± ${percent(value.se, 1)}` : null });
  const withPaper = key === 'adaptive:paper' && Object.values(PAGE.domains ?? {}).some((d) => d.paper?.win_rates);
  const paperHead = withPaper ? ['in the paper'] : [];
  const rows = domainsWith(state.dynamics).map((name) => {
    const domain = domainOf(name);
    const wins = domain.numbers.win_rate?.[key] ?? {};
    const median = wins.median_improvement;
    const said = domain.extra.paper?.win_rates;
    return {
      name: domain.label, chosen: name === state.domain.name,
      cells: [rate(wins.pathwise), ...(withPaper ? [paperCell(said?.pathwise)] : []), rate(wins.endpoint), ...(withPaper ? [paperCell(said?.endpoint)] : []), { text: percent(isNumber(median) ? median : median?.mean) }, { text: isNumber(wins.pathwise?.n) ? String(wins.pathwise.n) : '–' }, { text: wins.pathwise ? percent(winLimit(domain, key), 1) : '–' },
        rate(domain.numbers.concentration), { text: isNumber(domain.numbers.degenerate) ? String(domain.numbers.degenerate) : '–' }],
    };
  });
  const label = scheduleOf(key)?.label ?? key;
  const q = percent(state.domain.numbers.concentration?.q ?? 0.2);
  place.replaceChildren(table(`How often ${label} beats periodic`, [['', 1], [`${label} against periodic, all budgets`, withPaper ? 7 : 5], ['the domain', 2]],
    ['Domain', 'path won', ...paperHead, 'endpoint won', ...paperHead, 'median gain', 'pairs', 'highest possible', `defect in top ${q}`, 'degenerate'], rows));
  note.textContent = `A pair is one seed at one budget under both schedules; ± is the standard error over seeds. At budgets 0 and 1 all schedules are the same and a tie is not a win, so the highest rate possible depends on the budgets of the row${withPaper ? '; it is 90.5% on the paper’s 21' : ''}. `
    + `The defect in the top ${q} of the steps says how concentrated a domain’s trouble is.`;
}

/** Does the paper's result come out? For each metric one row a domain: the paper's improvement, ours, and a verdict. */
function writeAgreement() {
  const told = (PAGE.agreement ?? [])[0];
  at('agreement-card').hidden = !told;
  if (!told) return;
  const short = told.columns.map((text) => text.replace('here, ', '').split(',')[0]);
  const beside = (i) => i > told.columns.indexOf('verdict'); // other dynamics, which a phone has no room for
  const shown = short.map((_, i) => i).filter((i) => i > 1);
  const cellOf = (text, i) => {
    const wide = beside(i) ? 'beside' : '';
    if (text === undefined || text === 'n/a') return { text: '–', class: wide };
    const [, main, more] = /^(.*?%)(.*)$/.exec(text.replaceAll('-', MINUS)) ?? [null, text, ''];
    if (short[i] !== 'verdict') return { text: main, small: more.trim() || null, class: short[i] === 'paper' ? 'said' : wide };
    return { text: text.replace(/ \(.*/, ''), small: /\(.*/.exec(text)?.[0] ?? null, class: `word ${{ agrees: 'better', 'opposite sign': 'worse' }[text] ?? 'said'}` };
  };
  const heads = shown.map((i) => ({ text: short[i], class: beside(i) ? 'beside' : short[i] === 'verdict' ? 'word' : null }));
  at('agreement-title').textContent = told.title;
  at('agreement').replaceChildren(...unique(told.rows.map((row) => row[0])).flatMap((metric) => [
    html('h4', {}, `Improvement over periodic in ${metric}`),
    table(`Improvement over periodic in ${metric}, in the paper and here`, null, ['Domain', ...heads],
      told.rows.filter((row) => row[0] === metric).map((row) => ({ name: row[1], cells: shown.map((i) => cellOf(row[i], i)) })), 'verdicts'),
  ]));
  at('agreement-notes').replaceChildren(...[...told.notes].reverse().map((note) => html('p', { class: 'note' }, note)));
}

/** The figures that the paper has too, and its table 2. */
function writePaper() {
  const pictures = PAGE.pictures ?? [];
  const told = (PAGE.table2 ?? [])[0];
  at('paper-card').hidden = pictures.length === 0 && !told;
  at('pictures').replaceChildren(...pictures.map(({ caption, width, data }) => html('figure', {}, html('img', { src: data, alt: caption, width }), html('figcaption', { class: 'note' }, caption))));
  if (!told) return;
  const rows = told.rows.map((row) => ({ name: row[0], cells: row.slice(1).map((text) => ({ text: text === 'n/a' ? '–' : text, class: row[1] === 'paper' ? 'said' : null })) }));
  at('table2').replaceChildren(html('h4', {}, told.title), table(told.title, null, told.columns, rows));
  at('table2-notes').replaceChildren(...told.notes.map((note) => html('p', { class: 'note' }, note)));
}
