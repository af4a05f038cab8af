/* The states themselves: a path over a height field, on a sphere, or in the plane among obstacles. */

const view = { turn: new Map(), ground: null, groundKey: '' }; // how each domain's globe is turned, and the ground last shaded

function drawScene(place, state) {
  const { domain } = state;
  const schedule = scheduleOf(state.schedule);
  const example = exampleOf(domain, state.schedule, state.budget, state.seed);
  const reference = exampleOf(domain, 'stepwise', '1.00', state.seed);
  place.querySelector('canvas')?.remove();
  place.onkeydown = null;
  place.closest('.card').hidden = !example?.path?.length; // some domains keep no picture of their states
  if (!example?.path?.length) return '';
  const scene = { schedule, example, reference: reference?.path ?? [], state, domain };
  if (domain.extra.graph) return drawGraph(place, scene);
  if (domain.extra.surface) return drawGround(place, scene);
  if (example.path[0].length === 3) return drawGlobe(place, scene);
  return drawPlane(place, scene);
}

/** Points of the path where a projection was made; point t + 1 is the state after step t. */
const projectedPoints = (example) => [...example.projected].filter((t) => t + 1 < example.path.length).map((t) => t + 1);

const dotSize = (example) => (example.projected.size > 40 ? 2.2 : 3.1);

/** Whether point i of the path is the state after step i - 1; a single drawn state (a whole trajectory) has no such order. */
const followsSteps = (example) => example.path.length === example.defects.length + 1;

const showsSteps = (state) => {
  const example = exampleOf(state.domain, state.schedule, state.budget, state.seed);
  return !example?.path?.length || followsSteps(example);
};

const isReference = (scene) => scene.schedule.key === 'stepwise';

function nowMark(root, scene, spot) {
  if (followsSteps(scene.example)) root.append(svg('circle', { class: 'now', cx: spot[0], cy: spot[1], r: 5.5 }));
}

function box(points, share = 0.08) {
  const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const half = (Math.max(x1 - x0, y1 - y0) / 2 || 1) * (1 + share);
  const [cx, cy] = [(x0 + x1) / 2, (y0 + y1) / 2];
  return { x: [cx - half, cx + half], y: [cy - half, cy + half] };
}

const side = (place) => Math.min(Math.max(260, place.clientWidth), 460);

/* ------------------------------------------------------------------ a height field from above */

function drawGround(place, scene) {
  const { example, reference, schedule, domain } = scene;
  const field = heightField(domain);
  const size = side(place);
  const terminal = exampleOf(domain, 'terminal', '0.00', scene.state.seed);
  const frame = box([...(reference.length ? reference : example.path), ...(terminal?.path ?? [])], 0.16); // the same for all schedules
  const range = { x: within(frame.x, field.xs), y: within(frame.y, field.ys) };
  const tall = Math.round((size * (range.y[1] - range.y[0])) / (range.x[1] - range.x[0]));

  const gaps = example.path.map((p, t) => (t === 0 ? 0 : Math.sign(p[2] - field.at(p[0], p[1])) * (example.residuals[t - 1] ?? 0)));
  const most = Math.max(...gaps.map(Math.abs), ...(terminal?.residuals ?? [0]).map((g) => g ?? 0)) || 1;
  const lift = (0.13 * size) / most;

  picture(place, tall, `Path of ${schedule.label} over the height field, from above`, (root, width) => {
    const left = (width - size) / 2;
    const x = scale(range.x, [left, left + size]), y = scale(range.y, [tall, 0]);
    const key = [domain.name, ...range.x, ...range.y, left, size, isDark()].join();
    if (key !== view.groundKey) [view.ground, view.groundKey] = [shadedGround(field, range, left, size, tall), key];
    place.prepend(view.ground);
    const spots = example.path.map((p) => [x(p[0]), y(p[1])]);
    if (!isReference(scene)) root.append(svg('path', { class: 'way reference', d: line(reference.map((p) => [x(p[0]), y(p[1])])) }));
    const whiskers = spots.map(([px, py], t) => (gaps[t] ? `M${round(px)} ${round(py)}v${round(-gaps[t] * lift)}` : '')).join('');
    root.append(svg('path', { class: 'rug', d: whiskers || 'M0 0', fill: 'none', style: `stroke:${schedule.colour}` }));
    root.append(svg('path', { class: 'way casing', d: line(spots) }), svg('path', { class: 'way', d: line(spots), style: `stroke:${schedule.colour}` }));
    for (const i of projectedPoints(example)) root.append(svg('circle', { class: 'dot', cx: spots[i][0], cy: spots[i][1], r: dotSize(example), style: `fill:${schedule.colour}` }));
    drawEnds(root, spots);
    nowMark(root, scene, spots[Math.min(scene.state.step + 1, spots.length - 1)]);
  });
  return 'Seen from above; lighter ground is higher. The stems show how far the state is above or below the ground, in a scale of their own. Dots are projections'
    + (isReference(scene) ? '.' : ', the dotted path is the stepwise reference.');
}

/** A range moved, or else cut, so that it lies within an axis. */
function within([low, high], axis) {
  const [first, last] = [axis[0], axis.at(-1)];
  if (high - low >= last - first) return [first, last];
  const shift = Math.max(first - low, 0) + Math.min(last - high, 0);
  return [low + shift, high + shift];
}

function drawEnds(root, spots) {
  const [sx, sy] = spots[0], [ex, ey] = spots.at(-1);
  const width = root.viewBox.baseVal.width;
  const name = (px, py, text) => svg('text', { class: 'name', x: px > width - 50 ? px - 9 : px + 9, y: py + 15, 'text-anchor': px > width - 50 ? 'end' : 'start' }, text);
  root.append(name(sx, sy, 'start'), svg('circle', { class: 'now', cx: sx, cy: sy, r: 3 }));
  root.append(name(ex, ey, 'end'), svg('rect', { class: 'now', x: ex - 3, y: ey - 3, width: 6, height: 6 }));
}

/** The heights on their grid, and between the grid's points by bilinear interpolation. */
function heightField(domain) {
  const surface = domain.extra.surface;
  surface.heights ??= unpack(surface.z);
  const { x: xs, y: ys, heights } = surface;
  const locate = (axis, value) => {
    const f = Math.min(Math.max(((value - axis[0]) / (axis.at(-1) - axis[0])) * (axis.length - 1), 0), axis.length - 1.001);
    return [Math.floor(f), f - Math.floor(f)];
  };
  const at = (px, py) => {
    const [i, u] = locate(xs, px), [j, v] = locate(ys, py), n = xs.length;
    const row = (k) => (1 - u) * heights[k * n + i] + u * heights[k * n + i + 1];
    return (1 - v) * row(j) + v * row(j + 1);
  };
  const finite = heights.filter(isNumber);
  return { xs, ys, at, low: Math.min(...finite), high: Math.max(...finite) };
}

/** Grey relief with light from the upper left and contour lines, so that colour stays free for the paths. */
function shadedGround(field, range, left, size, tall) {
  const grain = 240;
  const canvas = html('canvas', { width: grain, height: grain, 'aria-hidden': 'true' });
  Object.assign(canvas.style, { left: `${left}px`, top: '0', width: `${size}px`, height: `${tall}px` });
  const dark = isDark();
  const paint = canvas.getContext('2d');
  const image = paint.createImageData(grain, grain);
  const x = scale([0, grain - 1], range.x), y = scale([0, grain - 1], [range.y[1], range.y[0]]);
  const heights = Float64Array.from({ length: grain * grain }, (_, k) => field.at(x(k % grain), y(Math.floor(k / grain))));
  const span = field.high - field.low || 1;
  for (let j = 0; j < grain; j++) {
    for (let i = 0; i < grain; i++) {
      const k = j * grain + i;
      const h = (heights[k] - field.low) / span;
      const east = heights[k] - heights[Math.max(k - 1, j * grain)], south = heights[k] - heights[Math.max(k - grain, i)];
      const light = Math.max(-1, Math.min(1, ((east + south) / span) * 26));
      const level = (v) => Math.floor(((v - field.low) / span) * 10);
      const contour = level(heights[k]) !== level(heights[Math.max(k - 1, 0)]) || level(heights[k]) !== level(heights[Math.max(k - grain, 0)]);
      const grey = dark ? 30 + 46 * h + 13 * light - (contour ? -16 : 0) : 196 + 52 * h + 12 * light - (contour ? 20 : 0);
      image.data.set([grey * (dark ? 0.9 : 0.985), grey, grey * (dark ? 1.06 : 0.985), 255], 4 * k);
    }
  }
  paint.putImageData(image, 0, 0);
  return canvas;
}

/* ------------------------------------------------------------------ a sphere, or any path in space, to be turned */

function drawGlobe(place, scene) {
  const { example, reference, schedule, domain } = scene;
  const norms = (reference.length ? reference : example.path).map((p) => Math.hypot(...p));
  const onSphere = norms.every((n) => Math.abs(n - 1) < 0.02);
  const all = [...example.path, ...reference];
  const centre = onSphere ? [0, 0, 0] : [0, 1, 2].map((k) => (Math.min(...all.map((p) => p[k])) + Math.max(...all.map((p) => p[k]))) / 2);
  const reach = onSphere ? Math.max(1, ...all.map((p) => Math.hypot(...p))) : Math.max(...all.map((p) => Math.hypot(...p.map((v, k) => v - centre[k])))) || 1;
  if (!view.turn.has(domain.name)) view.turn.set(domain.name, facing(reference.length ? reference : example.path, onSphere));

  const paint = () => {
    const turn = view.turn.get(domain.name);
    const size = side(place);
    picture(place, size, `${domain.extra.path?.title ?? 'Path in space'} under ${schedule.label}`, (root, width) => {
      const radius = (0.47 * size) / reach;
      const flat = (p) => {
        const [a, b, c] = rotated(p.map((v, k) => v - centre[k]), turn);
        return [width / 2 + a * radius, size / 2 - b * radius, c];
      };
      if (onSphere) drawSphere(root, flat, width / 2, size / 2, radius);
      else drawFrame(root, flat, centre, reach, domain.extra.path?.labels ?? ['x', 'y', 'z']);
      const spots = example.path.map(flat);
      if (!isReference(scene)) for (const part of visibleParts(reference.map(flat), onSphere)) root.append(svg('path', { class: `way reference${part.behind ? ' behind' : ''}`, d: line(part.spots) }));
      for (const part of visibleParts(spots, onSphere)) root.append(svg('path', { class: `way${part.behind ? ' behind' : ''}`, d: line(part.spots), style: `stroke:${schedule.colour}` }));
      for (const i of projectedPoints(example)) {
        if (!onSphere || spots[i][2] >= 0) root.append(svg('circle', { class: 'dot', cx: spots[i][0], cy: spots[i][1], r: dotSize(example), style: `fill:${schedule.colour}` }));
      }
      drawEnds(root, spots);
      nowMark(root, scene, spots[Math.min(scene.state.step + 1, spots.length - 1)]);
      root.append(turnHandle(place, domain.name, paint, width, size));
    });
  };
  paint();
  const title = capital(domain.extra.path?.title ?? 'the path in space');
  const rest = isReference(scene) ? '' : ' The dotted path is the stepwise reference.';
  return `${title}. ${onSphere ? 'Off the sphere means off the constraint. ' : ''}Dots are projections.${rest} Drag, or use the arrow keys, to turn it.`;
}

/** Yaw and pitch that show the middle of the path in front. */
function facing(path, onSphere) {
  if (!onSphere) return { yaw: -0.6, pitch: 0.45 };
  const middle = [0, 1, 2].map((k) => path.reduce((sum, p) => sum + p[k], 0) / path.length);
  return { yaw: -Math.atan2(middle[1], middle[0]), pitch: Math.atan2(middle[2], Math.hypot(middle[0], middle[1])) };
}

/** Right, up and toward the viewer; with yaw = pitch = 0 the viewer looks along -x and z is up. */
function rotated([a, b, c], { yaw, pitch }) {
  const x = a * Math.cos(yaw) - b * Math.sin(yaw), y = a * Math.sin(yaw) + b * Math.cos(yaw);
  return [y, c * Math.cos(pitch) - x * Math.sin(pitch), x * Math.cos(pitch) + c * Math.sin(pitch)];
}

/** Cut a path where it goes behind the globe. */
function visibleParts(spots, onSphere) {
  if (!onSphere) return [{ behind: false, spots }];
  const parts = [];
  spots.forEach((spot, i) => {
    const behind = spot[2] < 0;
    if (parts.at(-1)?.behind !== behind) {
      parts.push({ behind, spots: i ? [spots[i - 1]] : [] });
    }
    parts.at(-1).spots.push(spot);
  });
  return parts;
}

function drawSphere(root, flat, cx, cy, radius) {
  root.append(svg('circle', { class: 'globe', cx, cy, r: radius }));
  const circle = (point) => Array.from({ length: 73 }, (_, i) => flat(point((i / 36) * Math.PI)));
  const rings = [
    ...[0, 30, 60, 90, 120, 150].map((d) => (d * Math.PI) / 180).map((a) => circle((s) => [Math.cos(s) * Math.cos(a), Math.cos(s) * Math.sin(a), Math.sin(s)])),
    ...[-60, -30, 0, 30, 60].map((d) => (d * Math.PI) / 180).map((a) => circle((s) => [Math.cos(s) * Math.cos(a), Math.sin(s) * Math.cos(a), Math.sin(a)])),
  ];
  for (const ring of rings) for (const part of visibleParts(ring, true)) if (!part.behind) root.append(svg('path', { class: 'meridian', d: line(part.spots) }));
}

function drawFrame(root, flat, centre, reach, labels) {
  labels.forEach((label, k) => {
    const ends = [-1, 1].map((s) => flat(centre.map((v, j) => v + (j === k ? 0.62 * s * reach : 0))));
    root.append(svg('path', { class: 'meridian', d: line(ends) }));
    root.append(svg('text', { x: ends[1][0] + 4, y: ends[1][1] }, label));
  });
}

function turnHandle(place, name, paint, width, height) {
  const handle = svg('rect', { class: 'hit spin', width, height, tabindex: 0, role: 'application', 'data-keep': 'turn', 'aria-label': 'Turn the picture with the arrow keys or by dragging' });
  const turnBy = (yaw, pitch) => {
    const turn = view.turn.get(name);
    view.turn.set(name, { yaw: turn.yaw + yaw, pitch: Math.min(Math.max(turn.pitch + pitch, -1.5), 1.5) });
    paint();
  };
  handle.addEventListener('keydown', (event) => {
    const by = { ArrowLeft: [-0.12, 0], ArrowRight: [0.12, 0], ArrowUp: [0, -0.12], ArrowDown: [0, 0.12] }[event.key];
    if (!by) return;
    event.preventDefault();
    turnBy(...by);
  });
  handle.addEventListener('pointerdown', (event) => {
    let [fromX, fromY] = [event.clientX, event.clientY];
    const move = (next) => {
      turnBy((next.clientX - fromX) / 130, (next.clientY - fromY) / 130);
      [fromX, fromY] = [next.clientX, next.clientY];
    };
    const stop = () => { removeEventListener('pointermove', move); removeEventListener('pointerup', stop); removeEventListener('pointercancel', stop); };
    addEventListener('pointermove', move);
    addEventListener('pointerup', stop);
    addEventListener('pointercancel', stop);
  });
  return handle;
}

/* ------------------------------------------------------------------ the plane */

function drawPlane(place, scene) {
  const { example, reference, schedule, domain } = scene;
  const obstacles = example.obstacles ?? domain.extra.obstacles ?? [];
  const corners = obstacles.flatMap(([cx, cy, r]) => [[cx - r, cy - r], [cx + r, cy + r]]);
  const size = side(place);
  const range = box([...example.path, ...reference, ...corners]);
  picture(place, size, `${domain.extra.path?.title ?? 'Path in the plane'} under ${schedule.label}`, (root, width) => {
    const left = (width - size) / 2;
    const x = scale(range.x, [left, left + size]), y = scale(range.y, [size, 0]);
    for (const [cx, cy, r] of obstacles) root.append(svg('circle', { class: 'obstacle', cx: x(cx), cy: y(cy), r: x(cx + r) - x(cx) }));
    if (!isReference(scene)) root.append(svg('path', { class: 'way reference', d: line(reference.map((p) => [x(p[0]), y(p[1])])) }));
    const spots = example.path.map((p) => [x(p[0]), y(p[1])]);
    root.append(svg('path', { class: 'way', d: line(spots), style: `stroke:${schedule.colour}` }));
    if (followsSteps(example)) for (const i of projectedPoints(example)) root.append(svg('circle', { class: 'dot', cx: spots[i][0], cy: spots[i][1], r: dotSize(example), style: `fill:${schedule.colour}` }));
    drawEnds(root, spots);
    nowMark(root, scene, spots[Math.min(scene.state.step + 1, spots.length - 1)]);
  });
  const title = capital(domain.extra.path?.title ?? 'the path in the plane');
  return `${title}.${obstacles.length ? ' Grey discs are obstacles.' : ''}${isReference(scene) ? '' : ' The dotted path is the stepwise reference.'}`;
}

/* ------------------------------------------------------------------ a network, its edges by how full they are */

const fullness = (share) => `hsl(${Math.round(215 - 205 * Math.min(Math.max(share, 0), 1))} 68% ${isDark() ? 62 : 44}%)`;

function drawGraph(place, scene) {
  const { example, reference, schedule, domain } = scene;
  const { places, edges } = domain.extra.graph;
  const size = side(place);
  const range = box(places, 0.12);
  picture(place, size + 34, `${domain.extra.path?.title ?? 'Edges of a network'} under ${schedule.label}`, (root, width) => {
    const left = (width - size) / 2;
    const x = scale(range.x, [left, left + size]), y = scale(range.y, [size, 0]);
    edges.forEach(([a, b], i) => {
      const [share, full] = [example.path[i]?.[1], reference[i]?.[1]];
      const edge = svg('line', { class: 'edge', x1: x(places[a][0]), y1: y(places[a][1]), x2: x(places[b][0]), y2: y(places[b][1]), style: `stroke:${isNumber(share) ? fullness(share) : 'var(--faint)'}` });
      const words = `${a + 1} to ${b + 1}: ${percent(share)} of its rating${isReference(scene) ? '' : `\nstepwise ${percent(full)}`}`;
      edge.addEventListener('pointermove', (event) => tooltip.show(words, event.clientX, event.clientY));
      edge.addEventListener('pointerleave', () => tooltip.hide());
      root.append(edge);
    });
    places.forEach(([px, py], node) => root.append(svg('circle', { class: 'node', cx: x(px), cy: y(py), r: 9 }),
      svg('text', { class: 'node-name', x: x(px), y: y(py) + 4, 'text-anchor': 'middle' }, String(node + 1))));
    for (let i = 0; i < 20; i += 1) root.append(svg('rect', { x: left + size / 2 - 80 + 8 * i, y: size + 10, width: 8, height: 8, style: `fill:${fullness((i + 0.5) / 20)}` }));
    root.append(svg('text', { x: left + size / 2 - 86, y: size + 18, 'text-anchor': 'end' }, 'empty'), svg('text', { x: left + size / 2 + 86, y: size + 18 }, 'full'));
  });
  const loads = example.path.map((p) => p[1]).filter(isNumber);
  const apart = example.path.map((p, i) => Math.abs(p[1] - reference[i]?.[1])).filter(isNumber);
  return `${capital(domain.extra.path?.title ?? 'the edges of a network')}. The fullest is at ${percent(Math.max(...loads))}.`
    + (isReference(scene) || !apart.length ? '' : ` The largest difference from the stepwise sample is ${percent(Math.max(...apart), 1)} of a rating.`);
}
