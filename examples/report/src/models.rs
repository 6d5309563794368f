//! Whole models: tables of those that were run in several ways, and of one that decodes, and their plots.

use crate::plot;
use crate::record::{geometric_mean, Report, Row};
use anyhow::Result;
use std::fmt::Write;

/// The ways that stand beside stock candle in the table of models …
const UNCHANGED: [&str; 2] = ["override", "override+graph"];
/// … and in that of those that are rebuilt.
const REBUILT: [&str; 2] = ["fused", "fused+graph"];

fn ways() -> impl Iterator<Item = &'static str> {
    UNCHANGED.into_iter().chain(REBUILT)
}

/// Whether a row is one of the table of models, rather than of one model in several settings.
pub fn is_of_models(row: &Row) -> bool {
    row.bench == "model" && row.model.is_some()
}

/// Rows of one type of weights and one precision.
struct Part<'a> {
    dtype: &'a str,
    precision: &'a str,
    rows: Vec<&'a Row>,
}

impl<'a> Part<'a> {
    /// The parts of a report, in the order in which they first appear.
    fn all(report: &'a Report) -> Vec<Part<'a>> {
        let mut parts: Vec<Part> = Vec::new();
        for row in report.rows.iter().filter(|row| is_of_models(row)) {
            let (Some(dtype), Some(precision)) = (row.dtype.as_deref(), row.precision.as_deref()) else {
                continue;
            };
            let same = |part: &&mut Part| part.dtype == dtype && part.precision == precision;
            match parts.iter_mut().find(same) {
                Some(part) => part.rows.push(row),
                None => parts.push(Part {
                    dtype,
                    precision,
                    rows: vec![row],
                }),
            }
        }
        parts
    }

    fn of_way(&self, way: &str) -> impl Iterator<Item = &'a Row> + use<'a, '_> {
        let way = way.to_string();
        self.rows
            .iter()
            .copied()
            .filter(move |row| row.way.as_deref() == Some(&way))
    }

    /// Models with their settings, each once.
    fn models(&self) -> Vec<(&'a str, &'a str)> {
        let mut models = Vec::new();
        for row in &self.rows {
            let model = (text(&row.model), text(&row.setting));
            if !models.contains(&model) {
                models.push(model);
            }
        }
        models
    }

    fn find(&self, way: &str, (model, setting): (&str, &str)) -> Option<&'a Row> {
        self.of_way(way)
            .find(|row| text(&row.model) == model && text(&row.setting) == setting)
    }
}

fn text(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or_default()
}

/// ms, and those of the GPU alone.
fn ms(us: Option<f64>, gpu_us: Option<f64>) -> String {
    match (us, gpu_us) {
        (Some(us), Some(gpu_us)) => format!("{:.3} ({:.3})", us * 1e-3, gpu_us * 1e-3),
        (Some(us), None) => format!("{:.3}", us * 1e-3),
        _ => String::new(),
    }
}

fn times(row: Option<&Row>) -> String {
    row.map_or(String::new(), |row| ms(row.us, row.gpu_us))
}

fn speedup(row: Option<&Row>) -> String {
    let speedup = row.and_then(|row| row.speedup);
    speedup.map_or(String::new(), |speedup| format!("{speedup:.2}"))
}

/// The larger one.
fn difference(rows: [Option<&Row>; 2]) -> String {
    let differences = rows.into_iter().flatten().filter_map(|row| row.max_diff);
    let largest = differences.reduce(f64::max);
    largest.map_or(String::new(), |difference| format!("{difference:.1e}"))
}

/// The table of models that are rebuilt, if any is.
fn rebuilt(out: &mut String, part: &Part) {
    let rows = |model| REBUILT.map(|way| part.find(way, model));
    let mut models = part.models();
    models.retain(|&model| rows(model).iter().any(Option::is_some));
    if models.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\nRebuilt on this crate's blocks:\n\n| model | setting | stock ms (GPU) | fused ms (GPU) | × | as a graph ms (GPU) | × | \
         difference |\n|---|---|---:|---:|---:|---:|---:|---:|"
    );
    for model in models {
        let [fused, graph] = rows(model);
        let Some(any) = fused.or(graph) else { continue };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            model.0,
            model.1,
            ms(any.baseline_us, any.baseline_gpu_us),
            times(fused),
            speedup(fused),
            times(graph),
            speedup(graph),
            difference([fused, graph]),
        );
    }
}

/// A table a type and precision, another of what is rebuilt, its plot, and what was not measured.
pub fn models(out: &mut String, name: &str, report: &Report, plots: &str) {
    for part in Part::all(report) {
        let means: Vec<String> = ways()
            .filter_map(|way| {
                let ratios: Vec<f64> = part.of_way(way).filter_map(|row| row.speedup).collect();
                let least = ratios.iter().copied().reduce(f64::min)?;
                Some(format!(
                    "{way} {:.2} (of {}, least {least:.2})",
                    geometric_mean(&ratios),
                    ratios.len()
                ))
            })
            .collect();
        let _ = writeln!(
            out,
            "{}, {}; stock candle's time ÷ ours, geometric mean: {}.\n",
            part.dtype,
            part.precision,
            means.join(", ")
        );
        let _ = writeln!(
            out,
            "| model | setting | stock ms (GPU) | override ms (GPU) | × | as a graph ms (GPU) | × | products' share | taken over | \
             difference |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
        );
        for model in part.models() {
            let [over, graph] = UNCHANGED.map(|way| part.find(way, model));
            let Some(any) = over.or(graph) else { continue };
            let share = over.and_then(|row| Some((row.baseline_products_share?, row.products_share?)));
            let taken = over.and_then(|row| Some((row.taken_over?, row.products?)));
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                model.0,
                model.1,
                ms(any.baseline_us, any.baseline_gpu_us),
                times(over),
                speedup(over),
                times(graph),
                speedup(graph),
                share.map_or(String::new(), |(before, after)| {
                    format!("{:.0} % → {:.0} %", 100.0 * before, 100.0 * after)
                }),
                taken.map_or(String::new(), |(taken, all)| format!("{taken} of {all}")),
                difference([over, graph]),
            );
        }
        rebuilt(out, &part);
        let _ = writeln!(
            out,
            "\n![Times as fast as stock candle]({plots}/{})\n",
            plot_name(name, &part)
        );
    }
    let reasons = reasons(report);
    if !reasons.is_empty() {
        let _ = writeln!(out, "{}\n", reasons.join("\n"));
    }
}

/// What was passed on and what was not measured, once each.
fn reasons(report: &Report) -> Vec<String> {
    let mut reasons: Vec<String> = Vec::new();
    let mut say = |line: String| {
        if !reasons.contains(&line) {
            reasons.push(line);
        }
    };
    for row in report.rows.iter().filter(|row| is_of_models(row)) {
        let (model, dtype) = (text(&row.model), text(&row.dtype));
        for (reason, calls) in row.passed_on.iter().flatten() {
            say(format!("- {model}, {dtype}: {calls} products passed on: {reason}."));
        }
        if let Some(note) = &row.note {
            say(match row.way.as_deref() {
                Some("stock") | None => format!("- {model}, {dtype}: {note}."),
                Some(way) => format!("- {model}, {dtype}, no {way}: {note}."),
            });
        }
    }
    reasons
}

fn plot_name(name: &str, part: &Part) -> String {
    format!("{name}-{}-{}.svg", part.dtype, part.precision)
}

/// Bars, one plot a type and precision, with file names that begin with `name`.
///
/// # Errors
///
/// Of drawing.
pub fn model_plots(report: &Report, name: &str) -> Result<Vec<(String, String)>> {
    let mut drawn = Vec::new();
    for part in Part::all(report) {
        let mut bars = Vec::new();
        for model in part.models() {
            for way in ways() {
                let row = part.find(way, model);
                if let Some(speedup) = row.and_then(|row| row.speedup) {
                    bars.push((format!("{}, {way}", model.0), speedup));
                }
            }
        }
        let title = format!(
            "{}, models in {}, {}: times as fast as candle",
            report.gpu, part.dtype, part.precision
        );
        drawn.push((
            plot_name(name, &part),
            plot::bars(&title, "×", &bars, Some(("stock", 1.0)))?,
        ));
    }
    Ok(drawn)
}

/// A model that decodes: a table of its ways beside the bound, and its plot.
pub fn decode(out: &mut String, name: &str, report: &Report, plots: &str) {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.bench == "decode").collect();
    for (model, setting, dtype) in settings(&rows) {
        let of_setting = || rows.iter().filter(move |row| is_in(row, (model, setting, dtype)));
        let bound = of_setting().find_map(|row| Some((row.bound_us?, row.copy_gbps?)));
        if let Some((us, gbps)) = bound {
            let _ = writeln!(
                out,
                "{model}, {dtype}, {setting}: to read its weights at the {gbps:.0} GB/s of a copy takes {us:.1} µs, which bounds it \
                 to {:.1} tokens/s.\n",
                1e6 / us
            );
        }
        let _ = writeln!(
            out,
            "| way | precision | tokens/s | µs a token | × | of the bound | difference |\n|---|---|---:|---:|---:|---:|---:|"
        );
        for row in of_setting() {
            let number = |number: Option<f64>, digits: usize| number.map_or(String::new(), |x| format!("{x:.digits$}"));
            let share = row.bound_us.zip(row.us).map(|(bound, us)| 100.0 * bound / us);
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} |",
                text(&row.way),
                text(&row.precision),
                number(row.tokens_per_s, 1),
                number(row.us, 1),
                number(row.speedup, 2),
                share.map_or(String::new(), |share| format!("{share:.1} %")),
                row.max_diff
                    .map_or(String::new(), |difference| format!("{difference:.1e}")),
            );
        }
        out.push('\n');
        for row in of_setting() {
            if let Some(note) = &row.note {
                let _ = writeln!(out, "No {}, {}: {note}.\n", text(&row.way), text(&row.precision));
            }
        }
    }
    if !rows.is_empty() {
        let _ = writeln!(out, "![Tokens a second]({plots}/{name}.svg)\n");
    }
}

/// Models, settings and types, each once.
fn settings<'a>(rows: &[&'a Row]) -> Vec<(&'a str, &'a str, &'a str)> {
    let mut settings = Vec::new();
    for row in rows {
        let setting = (text(&row.model), text(&row.setting), text(&row.dtype));
        if !settings.contains(&setting) {
            settings.push(setting);
        }
    }
    settings
}

fn is_in(row: &Row, (model, setting, dtype): (&str, &str, &str)) -> bool {
    text(&row.model) == model && text(&row.setting) == setting && text(&row.dtype) == dtype
}

/// Tokens a second in every way and at the bound.
///
/// # Errors
///
/// Of drawing.
pub fn decode_plots(report: &Report, name: &str) -> Result<Vec<(String, String)>> {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.bench == "decode").collect();
    let mut bars: Vec<(String, f64)> = Vec::new();
    for setting in settings(&rows) {
        let of_setting: Vec<&&Row> = rows.iter().filter(|row| is_in(row, setting)).collect();
        for row in &of_setting {
            if let Some(tokens) = row.tokens_per_s {
                let precision = row.precision.as_ref().map_or(String::new(), |name| format!(", {name}"));
                bars.push((format!("{}{precision}, {}", text(&row.way), setting.2), tokens));
            }
        }
        let bound = of_setting.iter().find_map(|row| row.bound_us);
        bars.extend(bound.map(|us| (format!("the bound, {}", setting.2), 1e6 / us)));
    }
    if bars.is_empty() {
        return Ok(Vec::new());
    }
    let title = format!("{}, {}: tokens a second", report.gpu, text(&rows[0].model));
    Ok(vec![(format!("{name}.svg"), plot::bars(&title, "/s", &bars, None)?)])
}
