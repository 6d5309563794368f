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

/// The colour of a series, spread around the colour circle; the baseline, by its name, is black.
fn color(name: &str, index: usize) -> RGBColor {
    if is_baseline(name) {
        return BLACK;
    }
    // The golden angle: neighbours in the list are far apart in colour.
    let (red, green, blue) = HSLColor((index as f64 * 0.381_966).fract(), 0.75, 0.42).rgb();
    RGBColor(red, green, blue)
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

/// One line a series over sizes on a logarithmic axis. A series is a name and its `(size, value)` points.
pub fn lines(title: &str, x_title: &str, y_title: &str, series: &[(String, Vec<(f64, f64)>)]) -> Result<String> {
    let points = || series.iter().flat_map(|(_, points)| points);
    let mut sizes: Vec<f64> = points().map(|(size, _)| *size).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let top = points().map(|(_, value)| *value).fold(1e-9, f64::max);
    let mut svg = String::new();
    {
        let height = 520.max(60 + 22 * series.len() as u32);
        let root = SVGBackend::with_string(&mut svg, (1120, height)).into_drawing_area();
        root.fill(&WHITE).map_err(drawing)?;
        let (left, right) = root.split_horizontally(760);
        let mut chart = ChartBuilder::on(&left)
            .caption(title, (FONT, 20))
            .margin(MARGIN)
            .x_label_area_size(42)
            .y_label_area_size(58)
            .build_cartesian_2d(Sizes(sizes), 0.0..1.05 * top)
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_desc(x_title)
            .y_desc(y_title)
            .draw()
            .map_err(drawing)?;
        for (i, (name, points)) in series.iter().enumerate() {
            let style = color(name, i).stroke_width(2);
            chart
                .draw_series(LineSeries::new(points.iter().copied(), style))
                .map_err(drawing)?;
            let dots = points
                .iter()
                .map(|&point| Circle::new(point, 3, color(name, i).filled()));
            chart.draw_series(dots).map_err(drawing)?;
            // The legend, in the order of the list, beside the chart: lines that lie close together hide nothing.
            let y = 44 + 22 * i as i32;
            right
                .draw(&PathElement::new(vec![(4, y), (28, y)], style))
                .and_then(|()| right.draw(&Text::new(name.clone(), (36, y - 7), (FONT, 14))))
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
        for (i, (name, value)) in bars.iter().enumerate() {
            let y = HEAD + LINE * i as i32;
            let fill = if is_baseline(name) {
                BLACK
            } else {
                RGBColor(64, 120, 180)
            };
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
