'use strict';
/* The data behind the page: what the study wrote, and how to look things up in it. */

const DATA = JSON.parse(document.getElementById('data').textContent);
const { summary: SUMMARY, page: PAGE, links: LINKS } = DATA;

const DOMAINS = Object.keys(SUMMARY.domains);
const CLOSING_IS_PAID = (SUMMARY.config ?? {}).closing === 'paid'; // whether budgets count the closing projection
const LOOKS = { // colours that suit both themes, and dashes; words and all other colours come with the page
  terminal: { colour: '--c-terminal', dash: '2 3' },
  stepwise: { colour: '--c-stepwise', dash: '7 3' },
  periodic: { colour: '--c-periodic', dash: '6 2' },
  'adaptive:paper': { colour: '--c-paper', dash: '' },
  'adaptive:on-policy': { colour: '--c-on-policy', dash: '9 3' },
  'adaptive:dp': { colour: '--c-dp', dash: '9 3 2 3' },
  trimtab: { colour: '--c-trimtab', dash: '5 3' },
  planned: { colour: '--c-planned', dash: '10 2 2 2' },
  first: { colour: '--c-first', dash: '1 2' },
  window: { colour: '--c-window', dash: '8 2' },
  hindsight: { colour: '--c-hindsight', dash: '1 3' },
};
const METRICS = {
  nepe: { label: 'NEPE', unit: 'normalised excess path error' },
  endpoint: { label: 'endpoint distance', unit: 'distance of the final state to the stepwise one' },
  path_error: { label: 'path error', unit: 'residual defects summed over the path' },
  iterations: { label: 'solver iterations', unit: 'iterations of the solver for one sample, the closing projection included' },
  achieved_budget: { label: 'achieved budget', unit: 'share of the steps that were projected' },
};
const metricLabel = (metric) => METRICS[metric]?.label ?? metric.replaceAll('_', ' '); // a domain's own measures are named by it

const unique = (items) => [...new Set(items)];
const byNumber = (a, b) => Number(a) - Number(b);

const SCHEDULES = (() => {
  const told = PAGE.schedules ?? [];
  const seen = DOMAINS.flatMap((name) => Object.keys(SUMMARY.domains[name].schedules ?? {}));
  return unique([...told.map((s) => s.key), ...seen]).filter((key) => seen.includes(key)).map((key) => {
    const look = LOOKS[key];
    const said = told.find((s) => s.key === key) ?? {};
    return {
      key,
      label: said.label ?? key,
      summary: said.summary ?? '',
      colour: look ? `var(${look.colour})` : said.colour ?? 'var(--c-other)',
      dash: look?.dash ?? '4 2',
    };
  });
})();
const scheduleOf = (key) => SCHEDULES.find((s) => s.key === key);

const BASELINES = ['terminal', 'stepwise', 'periodic'];

/** The schedule to open with: what the page asks for, the default of calibrate, the paper's rule, or any but a baseline. */
const firstSchedule = () => (scheduleOf(PAGE.open?.schedule) ?? scheduleOf('adaptive:paper') ?? SCHEDULES.find((s) => !BASELINES.includes(s.key)) ?? SCHEDULES[0]).key;

/** The schedule that comparisons with periodic speak of: the chosen one, unless it is a baseline itself. */
const comparedKey = (chosen) => (BASELINES.includes(chosen) ? firstSchedule() : chosen);

/* A synthetic domain may be there with several kinds of dynamics: the same base, one kind shown at a time. */
const KNOWN_DYNAMICS = { langevin: 'Langevin', flow: 'constant speed', ramp: 'ramp', replica: 'replica', sphere: 'on a sphere' };
const dynamicsOf = (name) => PAGE.domains?.[name]?.dynamics ?? null;
const baseOf = (name) => PAGE.domains?.[name]?.base ?? name;
const DYNAMICS = unique(DOMAINS.map(dynamicsOf).filter((kind) => kind !== null));

/** The domains to choose from: those of one kind of dynamics, and those that know no such kinds. */
const domainsWith = (dynamics) => (DYNAMICS.length < 2 ? DOMAINS : DOMAINS.filter((name) => [null, dynamics].includes(dynamicsOf(name))));

/** The domain as it is called among others of the same dynamics. */
const shortDomainLabel = (name) => {
  const kind = dynamicsOf(name);
  return DYNAMICS.length > 1 && baseOf(name) !== name ? domainLabel(name).replace(new RegExp(` ${kind}$`), '') : domainLabel(name);
};

const domainLabel = (name) => PAGE.domains?.[name]?.label ?? name;

/** Everything the page knows about a domain: its summary, and its words and examples where there are any. */
function domainOf(name) {
  const numbers = SUMMARY.domains[name];
  const extra = PAGE.domains?.[name] ?? {};
  return {
    name,
    numbers,
    extra,
    label: domainLabel(name),
    schedules: SCHEDULES.filter((s) => numbers.schedules?.[s.key]),
    budgets: unique(Object.values(numbers.schedules ?? {}).flatMap(Object.keys)).sort(byNumber),
  };
}

/** The budget of the study nearest to a share. */
const nearestBudget = (domain, share) => domain.budgets.reduce((a, b) => (Math.abs(b - share) < Math.abs(a - share) ? b : a), domain.budgets[0]);

/** Where a slider's key leads: the next budget of the study, however far that is. */
function budgetAfterKey({ domain: { budgets }, budget }, key) {
  const index = budgets.indexOf(budget);
  const last = budgets.length - 1;
  const to = { ArrowRight: index + 1, ArrowUp: index + 1, ArrowLeft: index - 1, ArrowDown: index - 1, PageUp: index + 5, PageDown: index - 5, Home: 0, End: last }[key];
  return to === undefined ? undefined : budgets[Math.min(Math.max(to, 0), last)];
}

/** {mean, se, n} of a metric; schedules with one budget only (terminal, stepwise) answer for every budget. */
function cell(domain, key, budget, metric) {
  const budgets = domain.numbers.schedules?.[key] ?? {};
  const names = Object.keys(budgets);
  const own = budgets[budget] || names.length !== 1 ? budget : names[0];
  const value = budgets[own]?.[metric] ?? domain.numbers.quality?.[key]?.[own]?.[metric];
  return value && isNumber(value.mean) ? value : null;
}

/** How much lower a schedule's mean is than periodic's at the same budget: {mean, se}, se where the study told it. */
function improvementOf(domain, key, budget, metric) {
  const at = budgetFor(domain, key, budget);
  const told = domain.numbers.improvement?.[key]?.[at]?.[metric];
  if (told) return isNumber(told.mean) ? told : null;
  const [value, baseline] = [key, 'periodic'].map((k) => cell(domain, k, at, metric));
  return value && baseline && Math.abs(baseline.mean) > 1e-12 ? { mean: 1 - value.mean / baseline.mean, se: null } : null;
}

/** The highest win rate possible: at budgets 0 and 1 every schedule is the same, and a tie is not a win. */
function winLimit(domain, key) {
  const budgets = Object.keys(domain.numbers.schedules?.[key] ?? {}).map(Number);
  return budgets.filter((b) => b > 0 && b < 1).length / budgets.length;
}

/** The budget a schedule really stands for at the chosen one: its own, if it has only one. */
function budgetFor(domain, key, budget) {
  const names = Object.keys(domain.numbers.schedules?.[key] ?? {});
  return names.length === 1 ? names[0] : budget;
}

/** The example rollout nearest to the chosen budget, unpacked; null where there is none. */
function exampleOf(domain, key, budget, seedIndex) {
  const budgets = domain.extra.examples?.[key];
  if (!budgets) return null;
  const names = Object.keys(budgets).filter((name) => budgets[name].length > 0);
  if (names.length === 0) return null;
  const nearest = names.reduce((a, b) => (Math.abs(b - budget) < Math.abs(a - budget) ? b : a));
  const packed = budgets[nearest][Math.min(seedIndex, budgets[nearest].length - 1)];
  if (!packed.unpacked) {
    const flat = packed.path ? unpack(packed.path) : [];
    const width = domain.extra.path?.labels?.length ?? 3;
    const path = [];
    for (let i = 0; i + width <= flat.length; i += width) path.push(flat.slice(i, i + width));
    const projected = new Set(packed.projected ?? []);
    const defects = packed.defects ? unpack(packed.defects) : [];
    packed.unpacked = {
      ...packed, path, projected, defects, budget: nearest,
      residuals: defects.map((d, t) => (projected.has(t) ? 0 : d)),
      state_error: packed.state_error ? unpack(packed.state_error) : null,
    };
  }
  return packed.unpacked;
}

function unpack({ low, high, levels }) {
  const bytes = Uint8Array.from(atob(levels), (c) => c.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Array.from({ length: bytes.length / 2 }, (_, i) => {
    const level = view.getUint16(2 * i, true);
    return level === 65535 ? null : low + (level / 65534) * (high - low);
  });
}

/* ------------------------------------------------------------------ numbers as text */

const isNumber = (x) => typeof x === 'number' && Number.isFinite(x);
const MINUS = '\u2212';

/** Digits after the point, down to 0.01; below that three significant ones, and powers of ten below 0.0001. */
function number(x, digits = 3, like = x) {
  if (!isNumber(x)) return '–';
  const size = Math.abs(like);
  const text = size !== 0 && (size < 1e-4 || size >= 1e5) ? x.toExponential(1)
    : size >= 100 ? x.toFixed(0) : size >= 10 ? x.toFixed(1)
      : size !== 0 && size < 0.01 ? x.toFixed(2 - Math.floor(Math.log10(size))) : x.toFixed(digits);
  return text.replaceAll('-', MINUS);
}
const percent = (x, digits = 0) => (isNumber(x) ? `${(100 * x).toFixed(digits)}%`.replace(/^-(0(\.0*)?%)$/, '$1').replace('-', MINUS) : '–');
const plusMinus = (value, digits = 3) => (value ? `${number(value.mean, digits)}${isNumber(value.se) ? ` ± ${number(value.se, digits, value.mean)}` : ''}` : '–');
