//! Plots as SVG text. The same numbers give the same bytes on every machine, so that plots can be committed and checked.

use anyhow::{anyhow, Result};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use std::ops::Range;

const FONT: &str = "sans-serif";
const MARGIN: u32 = 12;

fn is_baseline(name: &str) -> bool {
    matches!(name, "cuBLAS" | "device-to-device copy")
}

/// Whether `name` names a variant of `of`: `sgemm_03_shared_padded` of `sgemm_03_shared`.
fn is_variant(name: &str, of: &str) -> bool {
    name.strip_prefix(of).is_some_and(|rest| rest.starts_with('_'))
}

/// How a series is drawn: families, which are a series and its variants, run through the ramp in the order of the list, and
/// variants are pale. The baseline, by its name, is black.
#[derive(Clone, Copy)]
struct Look {
    color: RGBColor,
    is_variant: bool,
}

fn looks<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Look> {
    let names: Vec<&str> = names.collect();
    let head = |name: &'a str| {
        let shorter = names.iter().copied().filter(|other| is_variant(name, other));
        shorter.min_by_key(|other| other.len())
    };
    let heads: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| head(name).is_none() && !is_baseline(name))
        .collect();
    let look = |name: &'a str| {
        let family = head(name).unwrap_or(name);
        let place = heads.iter().position(|other| *other == family).unwrap_or_default();
        let full = match is_baseline(name) {
            true => BLACK,
            false => ramp(place as f64 / (heads.len().max(2) - 1) as f64),
        };
        Look {
            color: if head(name).is_some() { pale(full) } else { full },
            is_variant: head(name).is_some(),
        }
    };
    names.iter().map(|name| look(name)).collect()
}

/// From violet over blue, green and orange to red: neighbours can be told apart, and the order can be seen.
fn ramp(share: f64) -> RGBColor {
    const STOPS: [[f64; 3]; 6] = [
        [110.0, 60.0, 160.0],
        [40.0, 100.0, 200.0],
        [20.0, 150.0, 160.0],
        [60.0, 160.0, 60.0],
        [225.0, 145.0, 0.0],
        [205.0, 35.0, 45.0],
    ];
    let at = share.clamp(0.0, 1.0) * (STOPS.len() - 1) as f64;
    let below = (at as usize).min(STOPS.len() - 2);
    let mix =
        |i: usize| (STOPS[below][i] + (at - below as f64) * (STOPS[below + 1][i] - STOPS[below][i])).round() as u8;
    RGBColor(mix(0), mix(1), mix(2))
}

fn pale(color: RGBColor) -> RGBColor {
    let mix = |part: u8| (0.35 * part as f64 + 0.65 * 255.0).round() as u8;
    RGBColor(mix(color.0), mix(color.1), mix(color.2))
}

/// Moves labels apart until each has `gap` to itself, within `bottom`; `wanted` is in the order from top to bottom.
fn apart(wanted: &[i32], gap: i32, bottom: i32) -> Vec<i32> {
    let mut places = wanted.to_vec();
    for i in 1..places.len() {
        places[i] = places[i].max(places[i - 1] + gap);
    }
    let mut limit = bottom;
    for place in places.iter_mut().rev() {
        *place = (*place).min(limit);
        limit = *place - gap;
    }
    places
}

/// An axis on which each value of a list has its own tick, at its logarithm.
struct Sizes(Vec<f64>);

impl Ranged for Sizes {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let Range { start, end } = self.range();
        let share = (value / start).ln() / (end / start).ln();
        limit.0 + (share * (limit.1 - limit.0) as f64).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.0.clone()
    }

    fn range(&self) -> Range<f64> {
        let first = self.0.first().copied().unwrap_or(1.0);
        let last = self.0.last().copied().unwrap_or(2.0);
        0.9 * first..1.1 * last
    }
}

impl ValueFormatter<f64> for Sizes {
    fn format_ext(&self, value: &f64) -> String {
        format!("{value}")
    }
}

/// One line a series over sizes on a logarithmic axis. A series is a name and its `(size, value)` points. Names stand at
/// the ends of the lines; variants are pale and nameless beside the series that they vary.
pub fn lines(title: &str, x_title: &str, y_title: &str, series: &[(String, Vec<(f64, f64)>)]) -> Result<String> {
    const CHART: i32 = 780;
    const LABELS: i32 = 340;
    const GAP: i32 = 19;
    let points = || series.iter().flat_map(|(_, points)| points);
    let mut sizes: Vec<f64> = points().map(|(size, _)| *size).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let top = points().map(|(_, value)| *value).fold(1e-9, f64::max);
    let looks = looks(series.iter().map(|(name, _)| name.as_str()));
    let named = looks.iter().filter(|look| !look.is_variant).count() as i32;
    let height = 600.max(90 + GAP * named);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, ((CHART + LABELS) as u32, height as u32)).into_drawing_area();
        root.fill(&WHITE).map_err(drawing)?;
        root.draw(&Text::new(title.to_string(), (MARGIN as i32, 12), (FONT, 20)))
            .map_err(drawing)?;
        let (left, _) = root.margin(40, 0, 0, 0).split_horizontally(CHART);
        let mut chart = ChartBuilder::on(&left)
            .margin(MARGIN)
            .x_label_area_size(46)
            .y_label_area_size(72)
            .build_cartesian_2d(Sizes(sizes), 0.0..1.05 * top)
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(RGBColor(225, 225, 225))
            .x_desc(x_title)
            .y_desc(y_title)
            .y_label_formatter(&|value| format!("{value}"))
            .label_style((FONT, 14))
            .axis_desc_style((FONT, 15))
            .draw()
            .map_err(drawing)?;
        let mut order: Vec<usize> = (0..series.len()).collect();
        order.sort_by_key(|&i| !looks[i].is_variant); // pale lines below
        for &i in &order {
            let (points, look) = (&series[i].1, looks[i]);
            let style = look.color.stroke_width(if look.is_variant { 1 } else { 2 });
            chart
                .draw_series(LineSeries::new(points.iter().copied(), style))
                .map_err(drawing)?;
            let radius = if look.is_variant { 2 } else { 3 };
            let dots = points
                .iter()
                .map(|&point| Circle::new(point, radius, look.color.filled()));
            chart.draw_series(dots).map_err(drawing)?;
        }
        // The names, from the highest line end down, moved apart and tied to their ends.
        let mut ends: Vec<(usize, (i32, i32))> = (0..series.len())
            .filter(|&i| !looks[i].is_variant)
            .filter_map(|i| Some((i, chart.backend_coord(series[i].1.last()?))))
            .collect();
        ends.sort_by_key(|(i, (_, y))| (*y, *i));
        let wanted: Vec<i32> = ends.iter().map(|(_, (_, y))| *y).collect();
        for ((i, end), y) in ends.iter().zip(apart(&wanted, GAP, height - 60)) {
            let color = looks[*i].color;
            let tie = vec![(end.0 + 5, end.1), (CHART - 6, y), (CHART + 6, y)];
            root.draw(&PathElement::new(tie, color.stroke_width(1)))
                .and_then(|()| {
                    let style = (FONT, 14).into_font().color(&color);
                    root.draw(&Text::new(series[*i].0.clone(), (CHART + 12, y - 7), style))
                })
                .map_err(drawing)?;
        }
        if looks.iter().any(|look| look.is_variant) {
            let style = (FONT, 13).into_font().color(&RGBColor(110, 110, 110));
            let note = "pale lines: variants of the line in the same colour";
            root.draw(&Text::new(note, (CHART - 20, height - 24), style))
                .map_err(drawing)?;
        }
        root.present().map_err(drawing)?;
    }
    Ok(svg)
}

/// Ratios that an axis has ticks at, as far as it reaches.
const RATIOS: [f64; 14] = [
    0.25, 0.35, 0.5, 0.7, 0.85, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0,
];

/// For each series, a name and its ratios, the share of them up to each ratio, on a logarithmic axis with a line at 1. The last
/// series is black. Ratios beyond the axis count at its ends.
pub fn cumulative(title: &str, x_title: &str, series: &[(String, Vec<f64>)]) -> Result<String> {
    const CHART: i32 = 780;
    const LABELS: i32 = 180;
    const HEIGHT: i32 = 560;
    const LINE: i32 = 22;
    let (first, last) = (RATIOS[0], RATIOS[RATIOS.len() - 1]);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, ((CHART + LABELS) as u32, HEIGHT as u32)).into_drawing_area();
        root.fill(&WHITE).map_err(drawing)?;
        root.draw(&Text::new(title.to_string(), (MARGIN as i32, 12), (FONT, 20)))
            .map_err(drawing)?;
        let (left, _) = root.margin(40, 0, 0, 0).split_horizontally(CHART);
        let mut chart = ChartBuilder::on(&left)
            .margin(MARGIN)
            .x_label_area_size(46)
            .y_label_area_size(72)
            .build_cartesian_2d(Sizes(RATIOS.to_vec()), 0.0..100.0)
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(RGBColor(225, 225, 225))
            .x_desc(x_title)
            .y_desc("% of the products")
            .y_label_formatter(&|value| format!("{value}"))
            .label_style((FONT, 14))
            .axis_desc_style((FONT, 15))
            .draw()
            .map_err(drawing)?;
        let even = LineSeries::new([(1.0, 0.0), (1.0, 100.0)], RED.stroke_width(1));
        chart.draw_series(even).map_err(drawing)?;
        for (place, (name, ratios)) in series.iter().enumerate() {
            let is_last = place + 1 == series.len();
            let color = match is_last {
                true => BLACK,
                false => ramp(place as f64 / (series.len().max(3) - 2) as f64),
            };
            let mut ratios = ratios.clone();
            ratios.sort_by(f64::total_cmp);
            // A step up at each ratio.
            let mut points = vec![(first, 0.0)];
            for (before, ratio) in ratios.iter().enumerate() {
                let ratio = ratio.clamp(first, last);
                let share = |count: usize| 100.0 * count as f64 / ratios.len() as f64;
                points.extend([(ratio, share(before)), (ratio, share(before + 1))]);
            }
            let style = color.stroke_width(if is_last { 3 } else { 2 });
            chart.draw_series(LineSeries::new(points, style)).map_err(drawing)?;
            let y = 64 + LINE * place as i32;
            root.draw(&PathElement::new(vec![(CHART + 6, y + 7), (CHART + 30, y + 7)], style))
                .and_then(|()| {
                    let style = (FONT, 14).into_font().color(&color);
                    root.draw(&Text::new(name.clone(), (CHART + 38, y), style))
                })
                .map_err(drawing)?;
        }
        root.present().map_err(drawing)?;
    }
    Ok(svg)
}

/// Horizontal bars, one a line, with their values, and a vertical line at `limit` if it is given with a name.
pub fn bars(title: &str, unit: &str, bars: &[(String, f64)], limit: Option<(&str, f64)>) -> Result<String> {
    const NAMES: i32 = 320;
    const WIDTH: i32 = 640;
    const LINE: i32 = 24;
    const HEAD: i32 = 56;
    let top = bars
        .iter()
        .map(|(_, value)| *value)
        .chain(limit.map(|(_, value)| value))
        .fold(1e-9, f64::max);
    let x = |value: f64| NAMES + (value / top * WIDTH as f64).round() as i32;
    let bottom = HEAD + LINE * bars.len() as i32;
    let mut svg = String::new();
    {
        let size = ((NAMES + WIDTH + 100) as u32, (bottom + 16) as u32);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(drawing)?;
        root.draw(&Text::new(title.to_string(), (MARGIN as i32, 12), (FONT, 20)))
            .map_err(drawing)?;
        let looks = looks(bars.iter().map(|(name, _)| name.as_str()));
        for (i, (name, value)) in bars.iter().enumerate() {
            let y = HEAD + LINE * i as i32;
            let fill = looks[i].color;
            root.draw(&Text::new(name.clone(), (MARGIN as i32, y + 4), (FONT, 14)))
                .and_then(|()| {
                    root.draw(&Rectangle::new(
                        [(NAMES, y + 2), (x(*value), y + LINE - 4)],
                        fill.filled(),
                    ))
                })
                .and_then(|()| {
                    let label = format!("{value:.1} {unit}");
                    root.draw(&Text::new(label, (x(*value) + 6, y + 4), (FONT, 14)))
                })
                .map_err(drawing)?;
        }
        if let Some((name, value)) = limit {
            root.draw(&PathElement::new(
                vec![(x(value), HEAD - 4), (x(value), bottom)],
                RED.stroke_width(1),
            ))
            .and_then(|()| {
                let label = format!("{name} {value:.1}");
                root.draw(&Text::new(
                    label,
                    (x(value) - 120, HEAD - 20),
                    (FONT, 14).into_font().color(&RED),
                ))
            })
            .map_err(drawing)?;
        }
        root.present().map_err(drawing)?;
    }
    Ok(svg)
}

fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw a plot: {error}")
}
