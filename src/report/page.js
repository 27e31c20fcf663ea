'use strict';
// Puts the page together from the data that the program wrote.
const DATA = JSON.parse(document.getElementById('data').textContent);
const RUN_COLORS = ['var(--accent)', 'var(--second)'];
const STACK = ['#3b82d6', '#35a7a0', '#e08a2c', '#8f6fd0', '#4f9d52', '#c75d9b', '#c94f4f', '#6b7f93',
  '#a98be0', '#b0843c', '#7bb0e8', '#948468'];

function section(title, hint, ...children) {
  return make('section', {}, make('h2', {}, title), hint ? make('p', {}, hint) : null, ...children);
}

function factList(facts) {
  return make('div', { class: 'facts' }, ...facts.map(([name, value, hint]) =>
    make('div', hint ? { title: hint } : {}, make('b', {}, value), make('span', {}, name))));
}

function table(head, rows) {
  return make('div', { class: 'scroll' }, make('table', {},
    make('thead', {}, make('tr', {}, ...head.map((text) => make('th', {}, text)))),
    make('tbody', {}, ...rows.map((row) => make('tr', {}, ...row.map((cell) => make('td', {}, cell)))))));
}

function curves(runs) {
  const several = runs.length > 1;
  const of = (group, column) => runs.map((run, i) => ({
    name: several ? run.name : '', x: run[group].step, y: run[group][column], color: RUN_COLORS[i], dash: i > 0,
  }));
  const accuracy = runs.flatMap((run, i) => (run.eval.step.length === 0 ? [] : [
    { name: (several ? run.name + ' ' : '') + 'top-1', x: run.eval.step, y: run.eval.top1, color: RUN_COLORS[i],
      dash: i > 0 },
    { name: (several ? run.name + ' ' : '') + 'top-5', x: run.eval.step, y: run.eval.top5,
      color: several ? RUN_COLORS[i] : RUN_COLORS[1], dash: i > 0 }]));
  const plots = [
    curve('training loss', '', of('metrics', 'loss')),
    curve('test accuracy', '%', accuracy),
    curve('throughput', 'samples/s', of('metrics', 'samples_per_second'), { zero: true }),
    curve('test loss', '', of('eval', 'loss')),
    curve('gradient norm', 'before clipping', of('metrics', 'grad_norm')),
    curve('learning rate', '', of('metrics', 'learning_rate'), { zero: true }),
  ];
  const scales = runs.some((run) => new Set(run.metrics.loss_scale).size > 1);
  if (scales) plots.push(curve('loss scale', '', of('metrics', 'loss_scale')));
  return section('Curves', '', make('div', { class: 'plots' }, ...plots));
}

function advice(runs) {
  const several = runs.length > 1;
  const cards = runs.flatMap((run) => run.advice.map((a) => make('div', { class: 'advice' },
    make('b', {}, (several ? run.name + ': ' : '') + a.title +
      (a.gain ? ` (up to ${a.gain} of a step)` : '')),
    make('div', {}, a.evidence), make('code', {}, `${a.key} = ${a.change}`))));
  return section('Advice', '', ...(cards.length ? cards : [make('p', {}, 'Nothing stands out.')]));
}

function operations(run) {
  const most = Math.max(...run.operations.map((o) => o[4]), 1e-9);
  return table(['operation', 'count', 'mean', 'longest', 'share of wall time, mean rank', 'FLOPs', 'bytes'],
    run.operations.map((o) => [o[0], String(o[1]), o[2], o[3],
      make('span', {}, make('span', { class: 'bar', style: `width:${(o[4] / most) * 90}px` }),
        `${(100 * o[4]).toFixed(1)} %`), o[5], o[6]]));
}

function memory(run) {
  const names = [...new Set(run.memory.flatMap((m) => m.rows.map((r) => r[0])))]
    .filter((n) => n !== 'allocated');
  const base = (name) => name.replace(/, \d+ buffers.*/, '');
  const groups = [...new Set(names.map(base))];
  const color = (name) => STACK[groups.indexOf(base(name)) % STACK.length];
  const total = (m, host) => m.rows.filter((r) => r[0] !== 'allocated' && r[2] === host)
    .reduce((sum, r) => sum + r[1], 0);
  const most = Math.max(...run.memory.map((m) => Math.max(total(m, 0), total(m, 1))), 1);
  const stack = (m, host) => make('div', { class: 'stack' }, ...m.rows
    .filter((r) => r[0] !== 'allocated' && r[2] === host && r[1] > 0)
    .map((r) => make('i', { style: `width:${(100 * r[1]) / most}%;background:${color(r[0])}`,
      title: `${r[0]}: ${showBytes(r[1])}` })));
  const rows = run.memory.map((m) => make('div', {},
    make('h3', {}, `${m.place}: ${showBytes(total(m, 0))} on the device, ` +
      `${showBytes(total(m, 1))} on the host`), stack(m, 0), stack(m, 1)));
  const legend = make('div', { class: 'legend' }, ...groups.map((name) =>
    make('span', {}, make('i', { style: `background:${color(name)}` }), name)));
  const resident = curve('resident memory of the processes', 'bytes', run.samples.map((s, i) => ({
    name: run.samples.length <= 4 ? s.place : '', x: s.seconds, y: s.resident,
    color: STACK[i % STACK.length] })), { unit: 's' });
  return { bars: [...rows, legend], resident };
}

// By the driver's own samples, over the whole run.
function gpus(run) {
  const of = (title, unit, key, factor, options) => curve(title, unit, run.gpus.map((g, i) => ({
    name: run.gpus.length <= 4 ? g.place : '', x: g.seconds, color: STACK[i % STACK.length],
    y: g[key].map((v) => (v === null ? null : v * factor)) }))
    .filter((s) => s.y.some((v) => v !== null)), { unit: 's', ...options });
  // What only Hopper and later tell; no empty plots of others.
  const told = (title, unit, key) => (run.gpus.some((g) => g[key].some((v) => v !== null))
    ? [of(title, unit, key, 100, { zero: true })] : []);
  return [of('busy', '% of the time a kernel runs', 'busy', 100, { zero: true }),
    ...told('SMs', '% of them have work', 'sms'),
    ...told('tensor cores', '% of the time they work', 'tensor'),
    ...told('SM occupancy', '% of the warps that fit', 'occupancy'),
    ...told('memory bandwidth', "% of the memory's peak", 'bandwidth'),
    of('power', 'W', 'watts', 1, { zero: true }), of('memory in use', 'bytes', 'memory', 1, { zero: true }),
    of('SM clock', 'Hz', 'sm_clock', 1), of('temperature', 'C', 'celsius', 1)];
}

// What is kept from forward to backward, over time, by the recorded order.
function savedOverTime(run, view) {
  const trace = run.trace;
  const series = view.ranks.slice(0, 8).map((rank, i) => {
    const changes = [];
    const ends = view.names.includes('backward_weight') &&
      trace.kinds.some((k) => view.names[k[0]] === 'backward_weight') ? 'backward_weight' : 'backward';
    for (const event of rank.byLane[0]) {
      const name = view.names[event.kind[0]], bytes = trace.saved[event.kind[2]] || 0;
      if (name === 'forward') changes.push([event.begin, bytes]);
      if (name === ends) changes.push([event.end, -bytes]);
    }
    const x = [], y = [];
    let bytes = 0;
    for (const [time, change] of changes.sort((a, b) => a[0] - b[0])) {
      x.push(time / 1e7, time / 1e7);
      y.push(bytes, bytes + change);
      bytes += change;
    }
    return { name: view.ranks.length <= 4 ? rank.place.split(' (')[0] : '', x, y,
      color: STACK[i % STACK.length] };
  });
  return curve('saved activations alive', 'bytes, by the recorded order', series, { zero: true, unit: 's' });
}

function heat(run) {
  const grid = make('div', { class: 'heat' });
  const caption = make('p', {});
  const fill = (what) => {
    const rows = run.heat[what], most = Math.max(...rows.flat(), 1e-30);
    const show = (v) => (what === 'seconds' ? showTime(v * 1e6) : showBytes(v));
    grid.style.gridTemplateColumns = `max-content repeat(${run.heat.ranks.length}, minmax(14px, 1fr))`;
    const cells = [make('div', { class: 'name' }, '')];
    for (const rank of run.heat.ranks) cells.push(make('div', { class: 'name', title: rank }, rank.replace('rank ', '')));
    run.heat.layers.forEach((layer, l) => {
      cells.push(make('div', { class: 'name' }, layer));
      rows[l].forEach((value, r) => cells.push(make('div', {
        title: `${layer}, ${run.heat.ranks[r]}: ${show(value)}`,
        style: value > 0 ? `background:hsl(var(--warm) / ${0.12 + 0.88 * (value / most)})` : 'background:var(--track)',
      })));
    });
    grid.replaceChildren(...cells);
    caption.textContent = what === 'seconds' ?
      `Compute of a step; the darkest is ${show(most)}. A chunk's time is divided over its layers by FLOPs.` :
      `Bytes of transfers, reductions and updates in a step; the darkest is ${show(most)}. ` +
      'A chunk\'s bytes are divided over its layers by parameters.';
    buttons.forEach(([name, button]) => button.setAttribute('aria-pressed', String(name === what)));
  };
  const buttons = [['seconds', 'time'], ['bytes', 'bytes']].map(([what, label]) =>
    [what, make('button', { onclick: () => fill(what) }, label)]);
  fill('seconds');
  return [make('div', { class: 'tools' }, ...buttons.map(([, button]) => button)), caption,
    make('div', { class: 'scroll' }, grid)];
}

function build() {
  const root = document.querySelector('main'), tip = document.getElementById('tip');
  const runs = DATA.runs;
  const views = [];
  for (const run of runs) {
    root.append(make('section', {}, make('h1', {}, run.name), factList(run.facts),
      run.analysis ? make('div', {}, make('p', { style: 'margin-top:14px' }, 'Recorded steps'),
        factList(run.analysis)) : make('p', {}, 'Nothing was traced: set trace.steps in the deck.')));
  }
  if (DATA.comparison) {
    root.append(section('Comparison', 'Operations by their mean.',
      table(['', runs[0].name, runs[1].name, 'change'], DATA.comparison)));
  }
  root.append(curves(runs), advice(runs));
  for (const run of runs) {
    if (run.gpus && run.gpus.length > 0)
      root.append(section(runs.length > 1 ? `GPUs: ${run.name}` : 'GPUs', '', make('div', { class: 'plots' }, ...gpus(run))));
  }
  for (const run of runs) {
    if (!run.trace) continue;
    const suffix = runs.length > 1 ? `: ${run.name}` : '';
    const lanes = lanesView(run.trace, tip);
    let left = run.trace.last_step < run.trace.last_of ?
      ` Drawn up to step ${run.trace.last_step} of ${run.trace.last_of}.` : '';
    if (run.trace.drawn < run.trace.of) {
      left += ` The first ${run.trace.drawn} of ${run.trace.of} ranks.`;
    }
    root.append(section(`Lanes${suffix}`, 'Drag to move; click, then the wheel zooms, or pinch. ' +
      'Numbers are chunk.micro. A transfer\'s bar includes waiting for its peer.' + left, lanes.node));
    views.push(lanes);
    root.append(section(`Operations${suffix}`, '', operations(run)));
    root.append(section(`Time and bytes by layer and rank${suffix}`, '', ...heat(run)));
    const held = memory(run);
    root.append(section(`Memory by name${suffix}`, 'One rank of each pipeline place; the first bar is ' +
      'the device\'s, the second the host\'s.', ...held.bars, make('div', { class: 'plots', style:
      'margin-top:14px' }, savedOverTime(run, lanes.view), held.resident)));
  }
  root.append(make('footer', {}, `voltapile ${DATA.version}, from ${DATA.folders.join(' and ')}`));
  views.forEach((view) => view.refresh());
  document.documentElement.dataset.ready = '1';
}
build();
