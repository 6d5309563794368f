//! What a person sees: tables on standard output, and the files of `--out`.

use crate::support::case::Case;
use crate::support::distribution::{self, plan_of, prediction_error, remarks_of, GOOD, SLOWER, WORST};
use crate::support::record::{geometric_mean, preparations, shape_of, Report, Row};
use anyhow::Result;
use std::path::Path;

pub fn heading(report: &Report) {
    println!(
        "{}, driver {}, CUDA {}, cuBLAS {}, {} MHz under FP32 load, FFMA peak {:.1} TFLOP/s, {}",
        report.gpu,
        report.driver,
        report.cuda,
        report.cublas,
        report.sm_clock_mhz,
        report.ffma_tflops.unwrap_or_default(),
        report.date
    );
}

pub fn case(case: &Case, rows: &[Row], left_out: &[String], ffma_tflops: f64) {
    println!(
        "\n{case}\n{:<36} {:>11} {:>9} {:>9} {:>7} {:>5} {:>8} {:>7} {:>10}",
        "kernel", "µs", "TFLOP/s", "% cuBLAS", "% FFMA", "regs", "shared", "blocks", "occupancy"
    );
    let number = |value: Option<u32>| value.map_or("-".into(), |value| value.to_string());
    for row in rows {
        let tflops = row.tflops.unwrap_or_default();
        let of_peak = match row.dtype.as_deref() {
            Some("f32") => format!("{:.1}", 100.0 * tflops / ffma_tflops),
            _ => "-".into(),
        };
        println!(
            "{:<36} {:>11.2} {tflops:>9.2} {:>9.1} {of_peak:>7} {:>5} {:>8} {:>7} {:>9.0}%",
            row.kernel.as_deref().unwrap_or_default(),
            row.us.unwrap_or_default(),
            100.0 * row.speedup.unwrap_or_default(),
            number(row.registers),
            number(row.shared_bytes),
            number(row.blocks_per_sm),
            100.0 * row.occupancy.unwrap_or_default(),
        );
    }
    for (dtype, name) in [("f32", "cuBLAS"), ("f64", "cuBLAS f64")] {
        let times: Vec<f64> = rows
            .iter()
            .filter(|row| row.dtype.as_deref() == Some(dtype))
            .filter_map(|row| row.baseline_us)
            .collect();
        if !times.is_empty() {
            let us = crate::support::record::median(times);
            println!("{name:<36} {us:>11.2} {:>9.2} {:>9.1}", case.flops() / us * 1e-6, 100.0);
        }
    }
    for (kernel, note) in preparations(rows) {
        println!("{kernel}: {note}");
    }
    for reason in left_out {
        println!("left out: {reason}");
    }
}

/// The plans of one case in the order of their predicted times.
pub fn plans(case: &Case, rows: &[Row]) {
    let cublas = crate::support::record::median(rows.iter().filter_map(|row| row.baseline_us).collect());
    println!("\n{case}, cuBLAS {cublas:.2} µs");
    let fastest = rows.iter().filter_map(|row| row.us).fold(f64::INFINITY, f64::min);
    for (place, row) in rows.iter().enumerate() {
        let us = row.us.unwrap_or_default();
        let remark = match (place == 0, us == fastest) {
            (true, true) => "chosen, fastest",
            (true, false) => "chosen",
            (false, true) => "fastest",
            (false, false) => "",
        };
        println!(
            "  {:<36} k in {:<3} {:<2} {us:>10.2} µs  predicted {:>10.2} µs  ratio {:.3}  {remark}",
            row.kernel.as_deref().unwrap_or_default(),
            row.stream_ranges.or(row.split_k).unwrap_or(1),
            row.repacked.as_deref().unwrap_or_default(),
            row.predicted_us.unwrap_or_default(),
            row.speedup.unwrap_or_default(),
        );
    }
}

/// TFLOP/s back to back and after a pause, cuBLAS's beside.
pub fn paces(case: &Case, rows: &[Row]) {
    print!("{:<20}", case.to_string());
    for row in rows {
        let baseline = case.flops() / row.baseline_us.unwrap_or(f64::INFINITY) * 1e-6;
        print!(
            "  {} {:>6.1} (cuBLAS {baseline:>6.1})",
            row.pace.as_deref().unwrap_or_default(),
            row.tflops.unwrap_or_default()
        );
    }
    if let Some(row) = rows.first() {
        let repacked = row
            .repacked
            .as_ref()
            .map_or(String::new(), |names| format!(", {names} repacked"));
        let precision = row.precision.as_deref().unwrap_or_default();
        println!("  {precision} {}{repacked}", row.kernel.as_deref().unwrap_or_default());
    }
}

/// What the planner's choices lose against the fastest of what it considers.
pub fn planning_summary(report: &Report) {
    let mut cases: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in &report.rows {
        let shape = shape_of(row);
        match cases.last_mut() {
            Some((known, rows)) if *known == shape => rows.push(row),
            _ => cases.push((shape, vec![row])),
        }
    }
    let speedup = |row: &Row| row.speedup.unwrap_or_default();
    let best = |rows: &Vec<&Row>| rows.iter().map(|row| speedup(row)).fold(0.0, f64::max);
    let chosen: Vec<f64> = cases.iter().map(|(_, rows)| speedup(rows[0])).collect();
    let possible: Vec<f64> = cases.iter().map(|(_, rows)| best(rows)).collect();
    println!(
        "\ngeometric mean of cuBLAS's time / ours over {} shapes: {:.3} as chosen, {:.3} with the fastest plans",
        cases.len(),
        geometric_mean(&chosen),
        geometric_mean(&possible)
    );
}

pub fn grid_row(case: &Case, row: &Row) {
    println!(
        "{:<28} {:>10.2} µs  cuBLAS {:>10.2} µs  {:>6.2} TFLOP/s  ratio {:.3}  {}",
        case.to_string(),
        row.us.unwrap_or_default(),
        row.baseline_us.unwrap_or_default(),
        row.tflops.unwrap_or_default(),
        row.speedup.unwrap_or_default(),
        row.kernel.as_deref().unwrap_or_default()
    );
}

pub fn grid_summary(report: &Report) {
    let ratios: Vec<f64> = report.rows.iter().filter_map(|row| row.speedup).collect();
    println!(
        "\ngeometric mean of cuBLAS's time / ours over {} shapes: {:.3}",
        ratios.len(),
        geometric_mean(&ratios)
    );
    let worst = report
        .rows
        .iter()
        .min_by(|x, y| x.speedup.unwrap_or(f64::MAX).total_cmp(&y.speedup.unwrap_or(f64::MAX)));
    if let Some(row) = worst {
        println!(
            "worst: {:.3} on {} with {}",
            row.speedup.unwrap_or_default(),
            shape_of(row),
            row.kernel.as_deref().unwrap_or_default()
        );
    }
}

/// Writes the report as JSON and CSV, under the name of what it measures.
pub fn write(report: &Report, folder: &Path) -> Result<()> {
    let name = report.rows.first().map_or("ladder", |row| row.bench.as_str());
    report.write(folder, name)
}

/// How the ratios are spread, and the products with the lowest.
pub fn distributions(report: &Report) {
    println!(
        "\n{:<20} {:>8} {:>14} {:>9} {:>9} {:>9} {:>11} {:>16}",
        "cuBLAS's time / ours",
        "products",
        "geometric mean",
        "median",
        "5 %",
        "worst",
        format!("under {SLOWER}"),
        format!("predicted ±{:.0} %", 100.0 * GOOD)
    );
    for of in distribution::distributions(&report.rows) {
        println!(
            "{:<20} {:>8} {:>14.3} {:>9.3} {:>9.3} {:>9.3} {:>9.1} % {:>14.1} %",
            of.name,
            of.count,
            of.mean,
            of.median,
            of.twentieth,
            of.worst,
            100.0 * of.slower,
            100.0 * of.predicted.unwrap_or_default()
        );
    }
    println!("\nthe worst:");
    for row in distribution::worst(&report.rows, WORST) {
        drawn(row);
    }
}

/// A drawn product that cuBLAS computes faster, and what would have been fastest.
pub fn slow(chosen: &Row, fastest: &[Row]) {
    drawn(chosen);
    for row in fastest {
        print!("  ");
        drawn(row);
    }
}

fn drawn(row: &Row) {
    println!(
        "{:.3}  {:<11} {:<28} {:>10.2} µs  cuBLAS {:>10.2} µs  predicted {:>10.2} µs ({:+.0} %)  {} ({})",
        row.speedup.unwrap_or_default(),
        row.class.as_deref().unwrap_or_default(),
        shape_of(row),
        row.us.unwrap_or_default(),
        row.baseline_us.unwrap_or_default(),
        row.predicted_us.unwrap_or_default(),
        100.0 * prediction_error(row).unwrap_or_default(),
        plan_of(row),
        remarks_of(row)
    );
}
