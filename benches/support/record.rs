//! The result files: one JSON object a report, written by the programs that measure, read by the report generator.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

#[path = "../../src/gemm/kernel/former_names.rs"]
mod former_names;
use former_names::present_name;

/// One run of a program that measures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the GPU (or CPU).
    pub gpu: String,
    pub driver: String,
    /// CUDA version of the driver.
    pub cuda: String,
    pub cublas: String,
    /// Clock of the multiprocessors under FP32 load, in MHz.
    #[serde(default)]
    pub sm_clock_mhz: f64,
    /// The rate of FP32 multiply-adds alone, measured in the same run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ffma_tflops: Option<f64>,
    /// UTC, `YYYY-MM-DDTHH:MM:SSZ`.
    pub date: String,
    /// What to type to measure again.
    pub command: String,
    pub rows: Vec<Row>,
}

/// One measurement. Fields that do not apply are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    /// `sgemm`, `random`, `ladder`, `sustained`, `transpose`, `linear`, `mlp`, `graph`, `model`, `decode`, `tests`, `accuracy` or
    /// `activation`.
    pub bench: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Number of the rung, for kernels of the ladder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rung: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub m: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// Whether the planner chooses this kernel, where several were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chosen: Option<bool>,
    /// Slices of k, where k was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split_k: Option<u32>,
    /// Ranges of k, where stream-K cuts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_ranges: Option<u32>,
    /// What the planner expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_us: Option<f64>,
    /// Operands that are repacked before the kernel starts, which is part of `us`: `a`, `b` or `ab`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repacked: Option<String>,
    /// `sustained` (launches back to back until the clock has settled) or `after a pause`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pace: Option<String>,
    /// What a drawn product is for: `layer`, `head`, `attention`, `convolution`, `gradient` or `odd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// What A and B are, where they are no tensors of their own: `narrowed`, `heads`, `broadcast` or `interleaved`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub a_view: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub b_view: Option<String>,
    /// Operands that candle copies before it calls cuBLAS, which is part of `baseline_us`: `a`, `b` or `ab`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_copies: Option<String>,
    /// Whether some row of an operand or of the result is off 16 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub off_16_bytes: Option<bool>,
    /// Whether the weights were kept out of the L2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold: Option<bool>,
    /// Of a transpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<usize>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub axes: Option<Vec<usize>>,
    /// Of a layer or model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<usize>,
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    pub inputs: Option<usize>,
    #[serde(rename = "out", skip_serializing_if = "Option::is_none")]
    pub outputs: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation: Option<String>,
    /// Of a whole model, by its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Batch, length and the like of its inputs: `8×128`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
    /// How it was run: `stock`, `override`, `override+graph`, `fused`, `fused+graph`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub way: Option<String>,
    /// Largest difference from the baseline's output ÷ its largest number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_diff: Option<f64>,
    /// Why there is no time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Of an accuracy measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us: Option<f64>,
    /// Of a pass over an operand beforehand, where a kernel is measured with one; not part of `us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepare_us: Option<f64>,
    /// The kernel of that pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepare_kernel: Option<String>,
    /// `cublas`, `copy` or `candle`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_us: Option<f64>,
    /// `baseline_us / us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speedup: Option<f64>,
    /// What the GPU alone takes of `us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_gpu_us: Option<f64>,
    /// The part of `gpu_us` in the products that this crate computed, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub products_share: Option<f64>,
    /// The part of `baseline_gpu_us` in the same products.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_products_share: Option<f64>,
    /// Of the products that this crate computed the one that is slowest beside cuBLAS, and cuBLAS's time of it divided by ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowest_product: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowest_product_speedup: Option<f64>,
    /// Of a model that decodes: tokens a second, and what reading all weights takes at `copy_gbps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_us: Option<f64>,
    /// Read and written by a copy on the device, in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_gbps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tflops: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub err_fro: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub err_max: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_err_fro: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_err_max: Option<f64>,
    /// Of a run of tests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<usize>,
    /// FP32 products that cuBLAS was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub products: Option<usize>,
    /// Those of them that this crate computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_over: Option<usize>,
    /// The others, by reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed_on: Option<BTreeMap<String, u64>>,
    /// Registers a thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registers: Option<u32>,
    /// Bytes of shared memory a block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_bytes: Option<u32>,
    /// Blocks that fit on a multiprocessor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_per_sm: Option<u32>,
    /// Fraction of a multiprocessor's threads that those blocks fill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occupancy: Option<f64>,
}

impl Row {
    /// The size if m, n and k are the same and there is one matrix.
    pub fn square(&self) -> Option<usize> {
        let same = self.m == self.n && self.n == self.k && self.batch.unwrap_or(1) == 1;
        self.m.filter(|_| same)
    }
}

/// What a report of this element type is called: by its name alone in FP32.
pub fn name_for(name: &str, dtype: &str) -> String {
    match dtype {
        "f32" => name.to_owned(),
        _ => format!("{name}-{dtype}"),
    }
}

impl Report {
    /// # Errors
    ///
    /// If the file cannot be read or is no report; the text names it.
    pub fn read(path: &Path) -> Result<Report> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut report: Report =
            serde_json::from_str(&text).with_context(|| format!("{} is not a report", path.display()))?;
        for row in &mut report.rows {
            row.kernel = row.kernel.as_deref().map(present_name);
        }
        Ok(report)
    }

    pub fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Writes `NAME.json` and `NAME.csv` into a folder, and says so on standard output.
    ///
    /// # Errors
    ///
    /// If a file cannot be written; the text names it.
    pub fn write(&self, folder: &Path, name: &str) -> Result<()> {
        for (extension, text) in [("json", self.to_json()?), ("csv", self.to_csv()?)] {
            let path = folder.join(format!("{name}.{extension}"));
            write_whole(&path, &text)?;
            println!("wrote {}", path.display());
        }
        Ok(())
    }

    /// The rows as comma-separated values. The columns are the fields that any row has.
    pub fn to_csv(&self) -> Result<String> {
        let rows: Vec<serde_json::Map<String, serde_json::Value>> = self
            .rows
            .iter()
            .map(|row| Ok(serde_json::from_value(serde_json::to_value(row)?)?))
            .collect::<Result<_>>()?;
        let mut columns: Vec<&String> = Vec::new();
        for name in rows.iter().flat_map(|row| row.keys()) {
            if !columns.contains(&name) {
                columns.push(name);
            }
        }
        let cell = |value: Option<&serde_json::Value>| match value {
            None => String::new(),
            Some(serde_json::Value::String(text)) if !text.contains([',', '"', '\n']) => text.clone(),
            Some(serde_json::Value::String(text)) => format!("\"{}\"", text.replace('"', "\"\"")),
            Some(value @ (serde_json::Value::Array(_) | serde_json::Value::Object(_))) => {
                format!("\"{}\"", value.to_string().replace('"', "\"\""))
            }
            Some(value) => value.to_string(),
        };
        let mut csv = columns.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(",") + "\n";
        for row in &rows {
            let cells: Vec<String> = columns.iter().map(|name| cell(row.get(*name))).collect();
            csv += &(cells.join(",") + "\n");
        }
        Ok(csv)
    }
}

/// Writes a file whole or not at all: under a temporary name beside it, then renamed.
///
/// # Errors
///
/// If the folder cannot be made or the file not be written; the text names it.
pub fn write_whole(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// What to type to run `program` again as it runs now. Where its files go belongs to one machine, and is left out.
pub fn command(program: &str) -> String {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    while let Some(at) = arguments.iter().position(|argument| argument.starts_with("--out")) {
        let value = usize::from(!arguments[at].contains('=') && at + 1 < arguments.len());
        arguments.drain(at..=at + value);
    }
    format!("{program} {}", arguments.join(" ")).trim_end().to_string()
}

/// This moment in UTC, as `YYYY-MM-DDTHH:MM:SSZ`.
pub fn now() -> String {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    timestamp(since_epoch.as_secs())
}

/// Seconds since 1970 as `YYYY-MM-DDTHH:MM:SSZ`.
pub fn timestamp(seconds: u64) -> String {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut days, time) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    while days >= 365 + is_leap(year) as u64 {
        days -= 365 + is_leap(year) as u64;
        year += 1;
    }
    let february = 28 + is_leap(year) as u64;
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

/// The middle of some numbers, the mean of the two middle ones if their count is even; NaN of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// The geometric mean; NaN of none.
pub fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

/// Of the kernels that were measured with a pass over an operand beforehand: what that takes.
pub fn preparations(rows: &[Row]) -> Vec<(&str, String)> {
    let note = |row: &Row, us: f64, prepare_us: f64, baseline_us: f64| {
        format!(
            "A transposed beforehand by {} in {prepare_us:.1} µs; {:.1} µs in all, {:.1} % of cuBLAS",
            row.prepare_kernel.as_deref().unwrap_or("a pass of its own"),
            us + prepare_us,
            100.0 * baseline_us / (us + prepare_us)
        )
    };
    rows.iter()
        .filter_map(|row| {
            Some((
                row.kernel.as_deref()?,
                note(row, row.us?, row.prepare_us?, row.baseline_us?),
            ))
        })
        .collect()
}

/// The shape of a product: `NT 32 × 128×768×768`.
pub fn shape_of(row: &Row) -> String {
    let number = |value: Option<usize>| value.unwrap_or_default();
    let batch = match row.batch {
        Some(batch) if batch > 1 => format!("{batch} × "),
        _ => String::new(),
    };
    format!(
        "{} {batch}{}×{}×{}",
        row.layout.as_deref().unwrap_or_default(),
        number(row.m),
        number(row.n),
        number(row.k)
    )
}
