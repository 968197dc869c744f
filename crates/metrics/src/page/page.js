// The page of a Forebay daemon: asks stats.json every two seconds, and plots what changes. Every
// ten seconds it asks insight.json for the curve of the cache and the causes of misses.
//
// A sample is the JSON object as the daemon sends it, which `forebay stats --json` prints too. A
// plot computes its values from two samples in a row, so a reload starts with empty plots. Text
// reaches the document by textContent only, because names of pools are anybody's.
'use strict';

const PERIOD_MS = 2000;
const MOST_SAMPLES = 1801;
const INSIGHT_PERIOD_MS = 10000;

const samples = [];
let paused = false;

// Values of samples.

const sum = (list, of) => list.reduce((total, it) => total + of(it), 0);
const chosen = () => document.getElementById('pool').value;
const pools = (sample) => sample.pools.filter((it) => !chosen() || it.name === chosen());
const mounts = (sample) => sample.mounts.filter((it) => !chosen() || it.pool === chosen());
const l2 = (sample) => pools(sample).flatMap((pool) => pool.l2_devices);
const counter = (of, name) => of.counters[name] || 0;
const pool = (name) => (sample) => sum(pools(sample), (it) => counter(it, name));
const cache = (name) => (sample) => counter(sample.cache, name);
const both = (name) => (sample) =>
  counter(sample.cache, name + '.metadata') + counter(sample.cache, name + '.data');
const state = (...names) => (sample) =>
  sum(sample.cache.states.filter((it) => names.includes(it.state)), (it) => it.bytes);

// Growth of a count from one sample to the next, and growth per second.
const growth = (of, before, now) => Math.max(0, of(now) - of(before));
const rate = (of) => (before, now) => growth(of, before, now) / ((now.at_ns - before.at_ns) / 1e9);
const gauge = (of) => (before, now) => of(now);
const ratio = (of, whole) => (before, now) => {
  const all = growth(whole, before, now);
  return all > 0 ? growth(of, before, now) / all : null;
};

// Where requested blocks came from. The first use of a block that was loaded, on request or ahead of
// it, is a hit of the cache too. Only the numbers of the whole process fit together, because pools
// share the cache.
const loads = both('misses');
const fromL2 = (sample) => sum(sample.pools.flatMap((it) => it.l2_devices), (it) => it.hits);
const fromDevice = (sample) => loads(sample) - fromL2(sample);
const fromMemory = (sample) => sample.cache.hits - loads(sample);
const wanted = (sample) => fromMemory(sample) + loads(sample);

const l2Hits = (sample) => sum(l2(sample), (it) => it.hits);
const l2Lookups = (sample) => sum(l2(sample), (it) => it.lookups);

// Numbers for people.

function scaled(value, step, units) {
  let at = 0;
  while (value >= step * 0.9995 && at + 1 < units.length) {
    value /= step;
    at += 1;
  }
  const digits = at === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return value.toFixed(digits) + units[at];
}
const bytes = (value) => scaled(value, 1024, [' B', ' KiB', ' MiB', ' GiB', ' TiB', ' PiB']);
const bytesPerS = (value) => bytes(value) + '/s';
const count = (value) => scaled(value, 1000, ['', ' k', ' M', ' G', ' T']);
const countPerS = (value) => count(value) + '/s';
const percent = (value) => (value * 100).toFixed(value >= 0.9995 || value < 0.0005 ? 0 : 1) + ' %';
const seconds = (value) =>
  value >= 1 ? value.toFixed(2) + ' s' : value >= 1e-3 ? (value * 1e3).toFixed(1) + ' ms'
    : (value * 1e6).toFixed(0) + ' µs';
const shown = (format, value) => (value === null || value === undefined ? '–' : format(value));

// Plots: title, explanation, format of values, series as name and function of two samples.

const PLOTS = [
  {
    title: 'Where requested blocks came from',
    text: 'All pools. Blocks read ahead count as read from a device.',
    format: percent, stacked: true, top: 1,
    series: [
      ['memory', ratio(fromMemory, wanted)],
      ['L2', ratio(fromL2, wanted)],
      ['device', ratio(fromDevice, wanted)],
    ],
  },
  {
    title: 'Throughput',
    text: 'Of files, and of the devices below them.',
    format: bytesPerS,
    series: [
      ['read', rate((it) => sum(mounts(it), (mount) => mount.read_bytes))],
      ['written', rate((it) => sum(mounts(it), (mount) => mount.write_bytes))],
      ['read from devices', rate((it) => pool('read_bytes.miss')(it) + pool('read_bytes.prefetch')(it))],
      ['written to devices', rate(pool('physical_bytes'))],
    ],
  },
  {
    title: 'Operations',
    text: 'Requests of the kernel to the mounts.',
    format: countPerS,
    series: [
      ['all', rate((it) => sum(mounts(it), (mount) => mount.operations))],
      ['reads', rate((it) => sum(mounts(it), (mount) => counter(mount, 'requests.read')))],
      ['writes', rate((it) => sum(mounts(it), (mount) => counter(mount, 'requests.write')))],
    ],
  },
  {
    title: 'Cache memory',
    text: 'MRU holds blocks used once, MFU blocks used more often.',
    format: bytes, stacked: true,
    bound: (sample) => sample.cache.bound_bytes,
    series: [
      ['MFU', gauge(state('mfu'))],
      ['MRU', gauge(state('mru'))],
      ['once', gauge(state('once'))],
      ['dirty', gauge((it) => it.cache.dirty_bytes)],
    ],
  },
  {
    title: 'Metadata and data',
    text: 'Memory by class, and what metadata may take before it gives way to data.',
    format: bytes,
    series: [
      ['metadata', gauge((it) => it.cache.metadata_bytes)],
      ['data', gauge((it) => it.cache.data_bytes)],
      ['metadata may take', gauge((it) => it.cache.metadata_target_bytes)],
    ],
  },
  {
    title: 'Ghosts',
    text: 'Bytes of evicted blocks that are remembered, by the list that lost them.',
    format: bytes,
    series: [
      ['MRU ghosts', gauge(state('mru_ghost'))],
      ['MFU ghosts', gauge(state('mfu_ghost'))],
    ],
  },
  {
    title: 'Ghost hits and evictions',
    text: 'A ghost hit is a read of a block that a larger cache would still have.',
    format: countPerS,
    series: [
      ['MRU ghost hits', rate(both('ghost_hits_mru'))],
      ['MFU ghost hits', rate(both('ghost_hits_mfu'))],
      ['evicted from MRU', rate(both('evicted_mru'))],
      ['evicted from MFU', rate(both('evicted_mfu'))],
      ['evicted, used once', rate(both('evicted_once'))],
    ],
  },
  {
    title: 'L2',
    text: 'Loads from cache devices. The share is that of memory misses that L2 served.',
    format: bytesPerS, needs: (sample) => l2(sample).length > 0,
    series: [
      ['read', rate((it) => sum(l2(it), (device) => counter(device, 'load_bytes')))],
      ['written', rate((it) => sum(l2(it), (device) => device.written_bytes))],
    ],
    also: [
      ['hits', ratio(l2Hits, l2Lookups), percent],
      ['used', gauge((it) => sum(l2(it), (device) => device.used_bytes)), bytes],
    ],
  },
  {
    title: 'Transaction groups',
    text: 'Mean time to close a group, while changes wait, and to make it durable.',
    format: seconds,
    series: [
      ['until durable', meanTime((it) => it.sync_ns, 'synced')],
      ['closing', meanTime((it) => it.quiesce_ns, 'quiesced')],
    ],
  },
  {
    title: 'Dirty data',
    text: 'Changes in memory that are not durable yet, and changes that were throttled.',
    format: bytes,
    series: [['dirty', gauge((it) => sum(pools(it), (of) => of.dirty_bytes))]],
    also: [['throttled', rate((it) => sum(pools(it), (of) => of.throttled)), countPerS]],
  },
];

// Mean of a time between two samples; the last one goes on while no group ends.
function meanTime(of, name) {
  let last = null;
  return (before, now) => {
    const ended = growth(pool(name), before, now);
    if (ended > 0) {
      last = growth((it) => sum(pools(it), of), before, now) / ended / 1e9;
    }
    return last;
  };
}

// Elements.

function element(tag, parent, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  parent.append(made);
  return made;
}

function build(plot) {
  const card = element('div', document.getElementById('plots'), undefined, 'card');
  element('h2', card, plot.title);
  element('p', card, plot.text);
  const canvas = element('canvas', card);
  canvas.setAttribute('role', 'img');
  const legend = element('ul', card, undefined, 'legend');
  const entry = (name, at) => {
    const item = element('li', legend);
    if (at > 0) element('i', item, undefined, 'series-' + at);
    item.append(name + ' ');
    return element('b', item);
  };
  plot.values = plot.series.map(([name], at) => entry(name, at + 1));
  plot.alsoValues = (plot.also || []).map(([name]) => entry(name, 0));
  Object.assign(plot, { card, canvas, points: [], hover: null });
  canvas.addEventListener('pointermove', (event) => {
    plot.hover = event.offsetX / canvas.clientWidth;
    draw(plot);
  });
  canvas.addEventListener('pointerleave', () => {
    plot.hover = null;
    draw(plot);
  });
}

// The smallest round number that is not below a value.
function roundUp(value, binary) {
  const base = binary ? 1024 : 1000;
  let unit = 1;
  while (value > unit * base) unit *= base;
  while (value < unit) unit /= base;
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];
  return (steps.find((step) => step * unit >= value) || base) * unit;
}

function draw(plot) {
  const { canvas, points } = plot;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (width === 0) return;
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext('2d');
  context.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue('--' + name).trim();
  const span = Number(document.getElementById('window').value);
  const end = points.length > 0 ? points[points.length - 1].at : 0;
  const visible = points.filter((it) => it.at >= end - span);
  const stack = (values) => {
    let below = 0;
    return values.map((value) => (plot.stacked ? (below += value || 0) : value));
  };
  const lines = visible.map((it) => ({
    at: it.at,
    values: stack(it.values),
    missing: (at) => (plot.stacked ? it.values.every((value) => value === null) : it.values[at] === null),
  }));
  const highest = Math.max(0, ...lines.flatMap((it) => it.values.map((value) => value || 0)),
    ...visible.map((it) => it.bound || 0));
  const binary = plot.format === bytes || plot.format === bytesPerS;
  const top = plot.top || roundUp(highest * 1.02 || 1, binary);
  const [above, below] = [14, 16];
  const x = (at) => width - (end - at) / span * width;
  const y = (value) => above + (1 - value / top) * (height - above - below);

  context.font = '11px system-ui, sans-serif';
  context.lineWidth = 1;
  context.strokeStyle = color('line');
  context.fillStyle = color('faint');
  for (const share of [0, 0.5, 1]) {
    const at = Math.round(y(top * share)) + 0.5;
    context.beginPath();
    context.moveTo(0, at);
    context.lineTo(width, at);
    context.stroke();
  }
  const ago = span >= 120 ? span / 60 + ' min ago' : span + ' s ago';
  context.fillText(ago, 0, height - 3);
  context.textAlign = 'right';
  context.fillText('now', width, height - 3);
  context.textAlign = 'left';

  const series = plot.series.map((_, at) => at);
  for (const at of plot.stacked ? series.reverse() : series) {
    context.strokeStyle = context.fillStyle = color('series-' + (at + 1));
    context.lineWidth = 1.6;
    let run = [];
    const finish = () => {
      if (run.length > 0) line(context, run, plot.stacked ? y(0) : null);
      run = [];
    };
    for (const it of lines) {
      if (it.missing(at)) finish();
      else run.push([x(it.at), y(it.values[at])]);
    }
    finish();
  }
  const bound = visible.length > 0 ? visible[visible.length - 1].bound : undefined;
  if (bound) {
    context.strokeStyle = color('faint');
    context.setLineDash([4, 4]);
    context.beginPath();
    context.moveTo(0, y(bound));
    context.lineTo(width, y(bound));
    context.stroke();
    context.setLineDash([]);
  }
  // Last, and with an edge, because series may be below them.
  context.fillStyle = color('text');
  context.strokeStyle = color('card');
  context.lineWidth = 3;
  context.lineJoin = 'round';
  for (const share of [0.5, 1]) {
    const text = plot.format(top * share);
    context.strokeText(text, 1, y(top * share) - 3);
    context.fillText(text, 1, y(top * share) - 3);
  }
  let current = points[points.length - 1];
  if (plot.hover !== null && visible.length > 0) {
    const at = end - (1 - plot.hover) * span;
    current = visible.reduce((best, it) =>
      (Math.abs(it.at - at) < Math.abs(best.at - at) ? it : best));
    context.strokeStyle = color('faint');
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x(current.at), above);
    context.lineTo(x(current.at), height - below);
    context.stroke();
  }
  legend(plot, current);
}

function line(context, run, base) {
  context.beginPath();
  run.forEach(([x, y], at) => (at === 0 ? context.moveTo(x, y) : context.lineTo(x, y)));
  if (base === null) {
    context.stroke();
    return;
  }
  context.lineTo(run[run.length - 1][0], base);
  context.lineTo(run[0][0], base);
  context.fill();
}

function legend(plot, point) {
  const texts = plot.series.map(([name], at) => {
    const text = shown(plot.format, point && point.values[at]);
    plot.values[at].textContent = text;
    return name + ' ' + text;
  });
  (plot.also || []).forEach(([, , format], at) => {
    plot.alsoValues[at].textContent = shown(format, point && point.also[at]);
  });
  plot.canvas.setAttribute('aria-label', plot.title + ': ' + texts.join(', '));
}

// One point of each plot.
function add(before, now) {
  for (const plot of PLOTS) {
    plot.points.push({
      at: now.at_ns / 1e9,
      values: plot.series.map(([, of]) => of(before, now)),
      also: (plot.also || []).map(([, of]) => of(before, now)),
      bound: plot.bound && plot.bound(now),
    });
    if (plot.points.length > MOST_SAMPLES) plot.points.shift();
  }
}

// Computes all points again, after the choice of a pool.
function recompute() {
  PLOTS.forEach((plot) => (plot.points = []));
  for (let at = 1; at < samples.length; at += 1) add(samples[at - 1], samples[at]);
  show();
}

function show() {
  const now = samples[samples.length - 1];
  const before = samples[samples.length - 2];
  if (!now) return;
  const memory = bytes(now.resident_bytes) + ' of ' + bytes(now.memory_bytes);
  document.getElementById('process').textContent =
    'Process ' + now.pid + ', ' + memory + ' of memory in use';
  choices(now);
  tiles(before, now);
  tables(before, now);
  for (const plot of PLOTS) {
    plot.card.hidden = Boolean(plot.needs) && !plot.needs(now);
    draw(plot);
  }
}

function choices(now) {
  const select = document.getElementById('pool');
  const names = ['', ...new Set(now.pools.map((it) => it.name))];
  if (names.join('\n') === [...select.options].map((it) => it.value).join('\n')) return;
  const value = select.value;
  select.replaceChildren();
  for (const name of names) element('option', select, name || 'all').value = name;
  select.value = names.includes(value) ? value : '';
}

function tiles(before, now) {
  const parent = document.getElementById('tiles');
  parent.replaceChildren();
  const of = (value) => (before ? value(before, now) : null);
  const tile = (name, text) => {
    const made = element('div', parent, undefined, 'tile');
    element('b', made, text);
    element('span', made, name);
  };
  tile('of blocks from memory', shown(percent, of(ratio(fromMemory, wanted))));
  tile('read', shown(bytesPerS, of(rate((it) => sum(mounts(it), (mount) => mount.read_bytes)))));
  tile('written', shown(bytesPerS, of(rate((it) => sum(mounts(it), (mount) => mount.write_bytes)))));
  tile('operations', shown(countPerS, of(rate((it) => sum(mounts(it), (mount) => mount.operations)))));
  tile('cached of ' + bytes(now.cache.bound_bytes), bytes(now.cache.metadata_bytes + now.cache.data_bytes));
  tile('dirty', bytes(sum(pools(now), (it) => it.dirty_bytes)));
}

function tables(before, now) {
  const fill = (id, headings, rows) => {
    const table = document.getElementById(id);
    table.replaceChildren();
    const row = (tag, cells) => {
      const made = element('tr', table);
      cells.forEach((cell) => {
        const [text, className] = Array.isArray(cell) ? cell : [cell];
        element(tag, made, text, className);
      });
    };
    row('th', headings);
    rows.forEach((cells) => row('td', cells));
  };
  fill('pools', ['pool', ['health', 'left'], 'used', 'of', 'dirty', 'txg'], pools(now).map((it) => [
    it.name, [it.health, 'left ' + it.health], bytes(it.allocated_bytes), bytes(it.total_bytes),
    bytes(it.dirty_bytes), String(it.txg),
  ]));
  const earlier = (mount) => before && before.mounts.find((it) =>
    it.pool === mount.pool && it.dataset === mount.dataset);
  const per = (mount, name) => {
    const old = earlier(mount);
    return old ? Math.max(0, mount[name] - old[name]) / ((now.at_ns - before.at_ns) / 1e9) : null;
  };
  fill('mounts', ['dataset', 'operations', 'read', 'written', 'inodes'], mounts(now).map((it) => [
    it.pool + '/' + it.dataset, shown(countPerS, per(it, 'operations')),
    shown(bytesPerS, per(it, 'read_bytes')), shown(bytesPerS, per(it, 'write_bytes')),
    count(it.inodes),
  ]));
}

async function poll() {
  try {
    if (!paused) {
      const answer = await fetch('stats.json', { cache: 'no-store' });
      if (!answer.ok) throw new Error('the daemon answers ' + answer.status);
      const now = await answer.json();
      const last = samples[samples.length - 1];
      if (last && (last.pid !== now.pid || last.at_ns > now.at_ns)) {
        samples.length = 0;
        recompute();
      }
      if (samples.length === 0 || samples[samples.length - 1].at_ns < now.at_ns) {
        samples.push(now);
        if (samples.length > MOST_SAMPLES) samples.shift();
        if (samples.length > 1) add(samples[samples.length - 2], now);
        show();
      }
      document.getElementById('connection').textContent = '';
    }
  } catch (error) {
    document.getElementById('connection').textContent =
      'No answer from the daemon, trying again: ' + error.message;
  }
  setTimeout(poll, PERIOD_MS);
}

// The curve of the cache, and why lookups missed.

let curve = null;
const slider = document.getElementById('memory');
let moved = false;
const CURVE_SERIES = ['hit_ratio', 'metadata_hit_ratio', 'data_hit_ratio'];

// The memory that the slider stands for.
function wantedMemory() {
  const [first, last] = [curve.points[0], curve.points[curve.points.length - 1]];
  return first.memory_bytes + slider.value / 1000 * (last.memory_bytes - first.memory_bytes);
}

// The value of the curve at a memory, by linear interpolation.
function curveAt(memory, name) {
  const at = Math.max(1, curve.points.findIndex((it) => it.memory_bytes >= memory));
  const [low, high] = [curve.points[at - 1], curve.points[at]];
  if (low[name] === null || high[name] === null) return null;
  const part = (memory - low.memory_bytes) / Math.max(1, high.memory_bytes - low.memory_bytes);
  return low[name] + Math.min(1, Math.max(0, part)) * (high[name] - low[name]);
}

function drawCurve() {
  const card = document.getElementById('curve');
  const tells = document.getElementById('memory-tells');
  const known = curve !== null && curve.points.length > 1 && curve.accesses > 0;
  slider.disabled = !known;
  const canvas = card.querySelector('canvas');
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  if (!known) {
    tells.textContent = 'Nothing was looked up yet.';
    canvas.setAttribute('aria-label', tells.textContent);
    return;
  }
  const [first, last] = [curve.points[0], curve.points[curve.points.length - 1]];
  const today = curve.points.find((it) => it.percent === 100);
  if (!moved) {
    slider.value = 1000 * (today.memory_bytes - first.memory_bytes)
      / Math.max(1, last.memory_bytes - first.memory_bytes);
  }
  const memory = moved ? wantedMemory() : today.memory_bytes;
  const context = canvas.getContext('2d');
  context.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue('--' + name).trim();
  const [above, below] = [14, 16];
  const x = (bytes) => (bytes - first.memory_bytes)
    / Math.max(1, last.memory_bytes - first.memory_bytes) * (width - 2) + 1;
  const y = (ratio) => above + (1 - ratio) * (height - above - below);
  const vertical = (at, name, dash) => {
    context.strokeStyle = color(name);
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(at, above);
    context.lineTo(at, height - below);
    context.stroke();
    context.setLineDash([]);
  };
  context.font = '11px system-ui, sans-serif';
  context.lineWidth = 1;
  context.strokeStyle = color('line');
  for (const share of [0, 0.5, 1]) {
    const at = Math.round(y(share)) + 0.5;
    context.beginPath();
    context.moveTo(0, at);
    context.lineTo(width, at);
    context.stroke();
  }
  vertical(x(today.memory_bytes), 'faint', [4, 4]);
  vertical(x(memory), 'text', []);
  CURVE_SERIES.forEach((name, at) => {
    const run = curve.points.filter((it) => it[name] !== null)
      .map((it) => [x(it.memory_bytes), y(it[name])]);
    if (run.length === 0) return;
    context.strokeStyle = color('series-' + (at + 1));
    context.lineWidth = at === 0 ? 2.4 : 1.4;
    line(context, run, null);
  });
  context.fillStyle = color('text');
  for (const share of [0.5, 1]) context.fillText(percent(share), 1, y(share) - 3);
  context.fillStyle = color('faint');
  context.fillText(bytes(first.memory_bytes), 0, height - 3);
  context.textAlign = 'right';
  context.fillText(bytes(last.memory_bytes), width, height - 3);
  context.textAlign = 'left';
  tells.textContent = told(memory, today);
  canvas.setAttribute('aria-label', tells.textContent);
}

function told(memory, today) {
  const ratio = curveAt(memory, 'hit_ratio');
  const saved = (today.misses - curveAt(memory, 'misses')) / Math.max(1, curve.seconds);
  const from = 'With ' + bytes(memory) + ' of memory, ' + percent(ratio) + ' of lookups hit';
  if (!moved || Math.abs(saved) < 0.5) return from + (moved ? ', about as today.' : ', today.');
  return from + ': ' + count(Math.abs(saved)) + (saved > 0 ? ' reads a second less.' : ' reads a second more.');
}

function showInsight(insight) {
  curve = insight.curve || null;
  drawCurve();
  const paragraphs = (id, texts) => {
    const parent = document.getElementById(id);
    parent.replaceChildren();
    texts.forEach((text) => element('p', parent, text));
    return parent;
  };
  paragraphs('advice', curve === null ? [] : curve.advice);
  const [summary, ...causes] = insight.explanation || [];
  const parent = paragraphs('explanation', summary ? [summary.join(' ')] : []);
  if (causes.length > 0) {
    const list = element('ol', parent);
    causes.forEach((sentences) => element('li', list, sentences.join(' ')));
  }
}

async function pollInsight() {
  try {
    if (!paused) {
      const answer = await fetch('insight.json', { cache: 'no-store' });
      if (answer.ok) showInsight(await answer.json());
    }
  } catch (error) {
    // The other poll says that the daemon does not answer.
  }
  setTimeout(pollInsight, INSIGHT_PERIOD_MS);
}

slider.addEventListener('input', () => {
  moved = true;
  drawCurve();
});
new ResizeObserver(drawCurve).observe(document.getElementById('curve'));
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawCurve);

PLOTS.forEach(build);
document.getElementById('pool').addEventListener('change', recompute);
document.getElementById('window').addEventListener('change', show);
document.getElementById('pause').addEventListener('click', (event) => {
  paused = !paused;
  event.target.textContent = paused ? 'Go on' : 'Pause';
  event.target.setAttribute('aria-pressed', String(paused));
});
new ResizeObserver(show).observe(document.getElementById('plots'));
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', show);
poll();
pollInsight();
