'use strict';
// The recorded steps, lane by lane, on a canvas: drag, pinch or wheel to zoom and move, hover for
// what an event is. Times are tenths of microseconds.
const COLORS = {
  forward: '#3b82d6', recompute: '#35a7a0', backward: '#e08a2c', backward_input: '#e08a2c',
  backward_weight: '#c75d9b', send_activation: '#7bb0e8', receive_activation: '#9aa9bd',
  send_gradient: '#eab676', receive_gradient: '#b5a48c', reduce_gradients: '#8f6fd0',
  gather_weights: '#a98be0', norm: '#c94f4f', update: '#4f9d52', load_batch: '#6b7f93',
  store_activation: '#7a6a55', fetch_activation: '#948468', snapshot: '#55708f',
  data_wait: '#d23f6e', issue: '#8a94a1', publish_trace: '#b0843c', evaluate: '#5a8f8a',
  save: '#a0653c', step_wait: '#c3cad3',
  step: '#aab3be',
};
const QUIET = ['step', 'step_wait'];

function unpackTrace(trace) {
  const names = trace.names, lanes = trace.lanes;
  const ranks = trace.ranks.map((rank) => {
    const byLane = lanes.map(() => []);
    let time = 0;
    for (const row of rank.steps) {
      for (let i = 1; i < row.length; i += 3) {
        time += row[i + 1];
        const kind = trace.kinds[row[i]];
        byLane[kind[1]].push({ kind, step: row[0], begin: time, end: time + row[i + 2] });
      }
    }
    byLane.forEach((list) => list.sort((a, b) => a.begin - b.begin));
    return { place: rank.place, host: rank.host, byLane };
  });
  let end = 1;
  const steps = new Map();
  for (const rank of ranks) {
    for (const list of rank.byLane) {
      for (const event of list) {
        if (QUIET.includes(names[event.kind[0]])) continue;
        end = Math.max(end, event.end);
        const seen = steps.get(event.step) || [Infinity, 0];
        if (event.kind[1] === 0) {
          steps.set(event.step, [Math.min(seen[0], event.begin), Math.max(seen[1], event.end)]);
        }
      }
    }
  }
  return { names, lanes, ranks, end, steps: [...steps].sort((a, b) => a[0] - b[0]) };
}

function describeEvent(view, rank, event) {
  const [name, lane, chunk, micro, bytes, flops] = event.kind;
  const us = (event.end - event.begin) / 10;
  const lines = [`${view.names[name]}`, `${rank.place} on ${rank.host}, lane ${view.lanes[lane]}`];
  let what = `step ${event.step}`;
  if (chunk >= 0) what += `, chunk ${chunk}`;
  if (micro >= 0) what += `, micro ${micro}`;
  lines.push(what, `${showTime(us)} from ${showTime(event.begin / 10)}`);
  if (flops > 0) lines.push(`${short(flops)}FLOP, ${short(flops / (us * 1e-6))}FLOP/s`);
  if (bytes > 0) lines.push(`${showBytes(bytes)}, ${showBytes(bytes / (us * 1e-6))}/s`);
  return lines;
}

function lanesView(trace, tip) {
  const view = unpackTrace(trace);
  const canvas = make('canvas', { 'aria-label': 'lanes of every rank over time' });
  const pen = canvas.getContext('2d');
  const state = { from: 0, to: view.end, all: view.ranks.length <= 4 };
  let rows = [];
  const ROW = 16, HEAD = 18, AXIS = 22;
  const gutter = () => (canvas.clientWidth < 520 ? 66 : 104);

  function layOut() {
    rows = [];
    let y = AXIS;
    for (const rank of view.ranks) {
      rows.push({ y, height: HEAD, rank, label: rank.place });
      y += HEAD;
      view.lanes.forEach((lane, index) => {
        const list = rank.byLane[index];
        if (list.length === 0 || (!state.all && index !== 0)) return;
        rows.push({ y, height: ROW, rank, lane, list });
        y += ROW;
      });
      y += 4;
    }
    const scale = window.devicePixelRatio || 1;
    canvas.style.height = `${y}px`;
    canvas.width = Math.max(1, Math.round(canvas.clientWidth * scale));
    canvas.height = Math.round(y * scale);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
  }

  function draw() {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const width = canvas.clientWidth, left = gutter();
    const px = (t) => left + ((t - state.from) / (state.to - state.from)) * (width - left);
    pen.clearRect(0, 0, width, canvas.height);
    pen.font = '11px system-ui, sans-serif';
    pen.textBaseline = 'middle';
    pen.fillStyle = color('--faint');
    pen.textAlign = 'center';
    for (const t of ticks(state.from, state.to, width < 520 ? 3 : 8)) {
      const x = px(t);
      pen.fillStyle = color('--grid');
      pen.fillRect(x, AXIS - 4, 1, canvas.height);
      pen.fillStyle = color('--faint');
      if (x > left + 20 && x < width - 24) pen.fillText(showTime(t / 10), x, 9);
    }
    for (const row of rows) {
      pen.textAlign = 'left';
      if (row.label) {
        pen.fillStyle = color('--ink');
        pen.font = '600 11px system-ui, sans-serif';
        pen.fillText(row.label, 0, row.y + row.height / 2);
        pen.font = '11px system-ui, sans-serif';
        continue;
      }
      pen.fillStyle = color('--faint');
      pen.fillText(row.lane, 8, row.y + row.height / 2);
      pen.fillStyle = color('--track');
      pen.fillRect(left, row.y + 1, width - left, row.height - 2);
      drawRow(row, px, left, width);
    }
    canvas.dataset.drawn = String(Number(canvas.dataset.drawn || 0) + 1);
  }

  function drawRow(row, px, left, width) {
    let covered = -1;
    for (const event of row.list) {
      const name = view.names[event.kind[0]];
      if (QUIET.includes(name) || event.end < state.from || event.begin > state.to) continue;
      const x = Math.max(left, px(event.begin)), end = Math.min(width, px(event.end));
      if (end - x < 0.5 && x < covered + 0.5) continue;
      covered = end;
      pen.fillStyle = COLORS[name] || '#888';
      pen.fillRect(x, row.y + 1, Math.max(0.6, end - x - (end - x > 3 ? 0.8 : 0)), row.height - 2);
      if (end - x > 26 && event.kind[3] >= 0) {
        pen.fillStyle = '#fff';
        pen.textAlign = 'center';
        pen.fillText(`${event.kind[2]}.${event.kind[3]}`, (x + end) / 2, row.y + row.height / 2 + 0.5);
      }
    }
  }

  let due = false;
  const redraw = () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; draw(); });
  };
  const show = (from, to) => {
    const least = 20, length = Math.min(Math.max(to - from, least), view.end * 1.02);
    state.from = Math.min(Math.max(from, -view.end * 0.01), view.end * 1.01 - length);
    state.to = state.from + length;
    redraw();
  };
  const timeAt = (clientX) => {
    const box = canvas.getBoundingClientRect(), left = gutter();
    return state.from + ((clientX - box.left - left) / (box.width - left)) * (state.to - state.from);
  };
  const zoom = (factor, at) => {
    const center = at === undefined ? (state.from + state.to) / 2 : at;
    show(center - (center - state.from) * factor, center + (state.to - center) * factor);
  };

  canvas.addEventListener('wheel', (event) => {
    if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaX) < Math.abs(event.deltaY)) {
      if (!event.altKey && !canvas.dataset.active) return;
    }
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const move = ((event.deltaX || event.deltaY) / canvas.clientWidth) * (state.to - state.from);
      show(state.from + move, state.to + move);
    } else zoom(Math.exp(event.deltaY * 0.002), timeAt(event.clientX));
  }, { passive: false });
  // A click makes the wheel zoom here; before it, the wheel scrolls the page.
  const fingers = new Map();
  canvas.addEventListener('pointerdown', (event) => {
    canvas.dataset.active = '1';
    fingers.set(event.pointerId, event.clientX);
    canvas.setPointerCapture(event.pointerId);
  });
  const lift = (event) => fingers.delete(event.pointerId);
  canvas.addEventListener('pointerup', lift);
  canvas.addEventListener('pointercancel', lift);
  canvas.addEventListener('pointermove', (event) => {
    if (!fingers.has(event.pointerId)) { hover(event); return; }
    tip.style.display = 'none';
    const before = [...fingers.values()], was = fingers.get(event.pointerId);
    fingers.set(event.pointerId, event.clientX);
    const now = [...fingers.values()];
    if (now.length === 2) {
      const spread = Math.abs(now[0] - now[1]) || 1;
      zoom((Math.abs(before[0] - before[1]) || 1) / spread, timeAt((now[0] + now[1]) / 2));
    } else {
      const move = ((was - event.clientX) / (canvas.clientWidth - gutter())) * (state.to - state.from);
      show(state.from + move, state.to + move);
    }
  });
  canvas.addEventListener('pointerleave', () => {
    tip.style.display = 'none';
    if (fingers.size === 0) delete canvas.dataset.active;
  });

  function hover(pointer) {
    const box = canvas.getBoundingClientRect(), y = pointer.clientY - box.top;
    const row = rows.find((r) => r.list && y >= r.y && y < r.y + r.height);
    const t = timeAt(pointer.clientX);
    const slack = (state.to - state.from) / canvas.clientWidth * 2;
    const event = row && row.list.find((e) => !QUIET.includes(view.names[e.kind[0]]) &&
      t >= e.begin - slack && t <= e.end + slack);
    tip.style.display = event ? 'block' : 'none';
    if (!event) return;
    tip.replaceChildren(...describeEvent(view, row.rank, event).map((line, i) =>
      make(i === 0 ? 'b' : 'div', { style: 'display:block' }, line)));
    const x = Math.min(pointer.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const below = pointer.clientY + 16;
    const fits = below + tip.offsetHeight < window.innerHeight;
    tip.style.left = `${Math.max(4, x)}px`;
    tip.style.top = `${fits ? below : pointer.clientY - tip.offsetHeight - 10}px`;
  }

  const lanesButton = make('button', { 'aria-pressed': String(state.all), onclick: () => {
    state.all = !state.all;
    lanesButton.setAttribute('aria-pressed', String(state.all));
    layOut();
    draw();
  } }, 'all lanes');
  const steps = make('select', { 'aria-label': 'step', onchange: () => {
    const step = view.steps.find(([number]) => String(number) === steps.value);
    if (!step) show(0, view.end);
    else show(step[1][0] - (step[1][1] - step[1][0]) * 0.02, step[1][1] + (step[1][1] - step[1][0]) * 0.02);
  } }, make('option', { value: 'all' }, 'all steps'),
  ...view.steps.map(([number]) => make('option', { value: number }, `step ${number}`)));
  const tools = make('div', { class: 'tools' }, steps,
    make('button', { onclick: () => zoom(0.5), 'aria-label': 'zoom in' }, '+'),
    make('button', { onclick: () => zoom(2), 'aria-label': 'zoom out' }, '−'),
    make('button', { onclick: () => zoom(1, show(state.from - (state.to - state.from) * 0.4,
      state.to - (state.to - state.from) * 0.4)), 'aria-label': 'earlier' }, '◀'),
    make('button', { onclick: () => zoom(1, show(state.from + (state.to - state.from) * 0.4,
      state.to + (state.to - state.from) * 0.4)), 'aria-label': 'later' }, '▶'),
    lanesButton);
  const used = new Set();
  for (const kind of trace.kinds) used.add(view.names[kind[0]]);
  const legend = make('div', { class: 'legend' }, ...[...used].filter((n) => !QUIET.includes(n)).map((name) =>
    make('span', {}, make('i', { style: `background:${COLORS[name] || '#888'}` }), name)));
  const refresh = () => { layOut(); draw(); };
  new ResizeObserver(refresh).observe(canvas.parentElement || canvas);
  window.addEventListener('resize', refresh);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', refresh);
  return { node: make('div', {}, tools, canvas, legend), refresh, view };
}
