/* The page: one state, controls that change it, drawings that follow it. */

const at = (id) => document.getElementById(id);

const state = (() => {
  const asked = new URLSearchParams(location.hash.slice(1));
  const domain = domainOf(DOMAINS.includes(asked.get('domain')) ? asked.get('domain') : DOMAINS.includes(PAGE.open?.domain) ? PAGE.open.domain : DOMAINS[0]);
  return { domain, dynamics: dynamicsOf(domain.name) ?? DYNAMICS[0] ?? null, schedule: asked.get('schedule') ?? firstSchedule(), budget: asked.get('budget') ?? PAGE.table_budget ?? '0.25', metric: asked.get('metric') ?? (CLOSING_IS_PAID ? 'endpoint' : 'nepe'), trace: 'defects', seed: 0, step: 0 };
})();

/** Make the state fit the domain: a schedule it has, its nearest budget, a seed it keeps, the step of the worst defect. */
function settle(changed) {
  const { domain } = state;
  if (!domain.schedules.some((s) => s.key === state.schedule)) state.schedule = (domain.schedules.find((s) => s.key === firstSchedule()) ?? domain.schedules[0])?.key;
  const wanted = isNumber(Number(state.budget)) ? Number(state.budget) : 0.25;
  state.budget = nearestBudget(domain, wanted);
  const metrics = metricsOf(domain);
  if (!metrics.includes(state.metric)) state.metric = metrics[0] ?? 'nepe';
  state.seed = Math.min(state.seed, Math.max(0, (domain.extra.seeds?.length ?? 1) - 1));
  if (changed !== 'step') {
    const defects = exampleOf(domain, state.schedule, state.budget, state.seed)?.defects ?? [];
    if (state.step >= defects.length || changed === 'domain') state.step = Math.max(0, defects.indexOf(Math.max(...defects)));
  }
}

const metricsOf = (domain) => {
  const present = unique([domain.numbers.schedules, domain.numbers.quality].flatMap((part) => Object.values(part ?? {}))
    .flatMap((budgets) => Object.values(budgets).flatMap(Object.keys)));
  const order = unique([...(PAGE.metrics ?? []).map((m) => m.key), ...Object.keys(METRICS), ...present]);
  return order.filter((m) => present.includes(m));
};

function change(what, value) {
  state[what] = what === 'domain' ? domainOf(value) : value;
  if (what === 'dynamics') state.domain = domainOf(sameWith(value));
  settle(what === 'dynamics' ? 'domain' : what);
  show(what);
}

/** The domain in place of the present one: the same base with other dynamics, else the first that has them. */
function sameWith(dynamics) {
  const others = domainsWith(dynamics);
  const base = baseOf(state.domain.name);
  return others.find((name) => baseOf(name) === base) ?? others.find((name) => dynamicsOf(name) === dynamics);
}
const setBudget = (budget) => { if (budget !== state.budget) change('budget', budget); };
const setStep = (step) => change('step', step);

function show(changed) {
  drawTrace(at('trace'), state, setStep);
  at('scene-note').textContent = drawScene(at('scene'), state);
  at('scene-title').textContent = showsSteps(state) ? 'The path' : 'The final sample';
  if (changed === 'step') return;
  showControls(changed);
  writeHeadline(state);
  drawFrontier(at('frontier'), state, setBudget);
  at('sweep-note').textContent = drawSweep(at('sweep'), state);
  writeNotes();
  writeMade(at('made'), state);
  writeErrorTable(at('table-error'), at('table-error-note'), at('table-title'), state);
  writeWinTable(at('table-wins'), at('table-wins-note'), state);
  const hash = new URLSearchParams({ domain: state.domain.name, schedule: state.schedule, budget: state.budget, metric: state.metric });
  try { history.replaceState(null, '', `#${hash}`); } catch { /* some browsers refuse this for files: the page works without */ }
}

const STEMS = 'A stem is a defect that a projection removed. Below, when each schedule projects with the same noise.';

function writeNotes() {
  at('frontier-note').textContent = 'Bands are ± one standard error. Drag in the plot to set the budget.';
  const example = exampleOf(state.domain, state.schedule, state.budget, state.seed);
  const elsewhere = example && example.budget !== budgetFor(state.domain, state.schedule, state.budget) ? ` Shown at budget ${percent(Number(example.budget))}, the nearest that was kept.` : '';
  at('trace-note').textContent = example
    ? `Seed ${example.seed}. The filled area is the error that was kept: its sum is the path error. ${STEMS}${elsewhere}`
    : '';
}

/* ------------------------------------------------------------------ controls */

function radio(group, value, checked, ...content) {
  return html('label', { class: 'option' }, html('input', { type: 'radio', name: group, value, checked: checked ? '' : null }), ...content);
}

function fillSelect(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text]) => html('option', { value, selected: String(value) === String(chosen) ? '' : null }, text)));
  select.closest('label').hidden = options.length < 2;
}

function showControls(changed) {
  const { domain } = state;
  if (!changed || changed === 'domain' || changed === 'dynamics') {
    at('dynamics').hidden = DYNAMICS.length < 2;
    at('dynamics').querySelector('.options').replaceChildren(...DYNAMICS.map((kind) => radio('dynamics', kind, kind === state.dynamics, KNOWN_DYNAMICS[kind] ?? kind)));
    at('domains').querySelector('.options').replaceChildren(...domainsWith(state.dynamics).map((name) => radio('domain', name, name === domain.name, shortDomainLabel(name))));
    at('schedules').querySelector('.options').replaceChildren(...domain.schedules.map((s) => radio('schedule', s.key, s.key === state.schedule, swatch(s), s.label, html('span', { class: 'value' }))));
    fillSelect(at('metric'), metricsOf(domain).map((m) => [m, metricLabel(m)]), state.metric);
    fillSelect(at('seed'), (domain.extra.seeds ?? []).map((seed, i) => [i, seed]), state.seed);
    fillSelect(at('trace-kind'), Object.entries(TRACES), state.trace);
    if (changed) at(changed === 'domain' ? 'domains' : 'dynamics').querySelector(':checked')?.focus();
  }
  for (const option of at('schedules').querySelectorAll('.option')) {
    const value = cell(domain, option.querySelector('input').value, state.budget, state.metric);
    option.querySelector('.value').textContent = value ? number(value.mean, 2) : '–';
  }
  for (const strip of document.querySelectorAll('.options')) {
    const chosen = strip.querySelector(':checked')?.parentElement; // on a phone the choices are a strip to scroll
    if (chosen && changed !== 'budget') strip.scrollLeft = chosen.offsetLeft - strip.offsetLeft - (strip.clientWidth - chosen.offsetWidth) / 2;
  }
  at('schedules-unit').textContent = `${metricLabel(state.metric)} at ${percent(Number(state.budget))}`;
  at('budget').value = Math.round(100 * Number(state.budget));
  at('budget').setAttribute('aria-valuetext', `${percent(Number(state.budget))} of the steps`);
  at('budget-out').textContent = percent(Number(state.budget));
}

/* ------------------------------------------------------------------ light and dark */

const darkScheme = matchMedia('(prefers-color-scheme: dark)');
const THEMES = ['system', 'light', 'dark'];
let theme = 'system';
const isDark = () => (theme === 'system' ? darkScheme.matches : theme === 'dark');

function showTheme() {
  document.documentElement.dataset.theme = isDark() ? 'dark' : 'light';
  at('theme').textContent = `Theme: ${theme}`;
}

/* ------------------------------------------------------------------ begin */

at('domains').addEventListener('change', (event) => change('domain', event.target.value));
at('dynamics').addEventListener('change', (event) => change('dynamics', event.target.value));
at('schedules').addEventListener('change', (event) => change('schedule', event.target.value));
at('budget').addEventListener('input', (event) => {
  setBudget(nearestBudget(state.domain, Number(event.target.value) / 100));
  showControls('budget'); // the thumb goes to the budget, not to where the pointer is
});
at('budget').addEventListener('keydown', (event) => {
  const budget = budgetAfterKey(state, event.key);
  if (budget === undefined) return;
  event.preventDefault();
  setBudget(budget);
});
at('metric').addEventListener('change', (event) => change('metric', event.target.value));
at('seed').addEventListener('change', (event) => change('seed', Number(event.target.value)));
at('trace-kind').addEventListener('change', (event) => change('trace', event.target.value));
document.querySelector('form').addEventListener('submit', (event) => event.preventDefault());
at('theme').addEventListener('click', () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  showTheme();
  show('theme');
});
darkScheme.addEventListener('change', () => { showTheme(); show('theme'); });

let shownWidth = innerWidth;
addEventListener('resize', () => {
  if (innerWidth === shownWidth) return; // a phone's address bar changes the height only
  shownWidth = innerWidth;
  show('width');
});
addEventListener('scroll', () => tooltip.hide(), { passive: true });

if (PAGE.title) document.title = PAGE.title;
settle('domain');
showTheme();
writeAbout();
writeAgreement();
writePaper();
writeRun();
show();
