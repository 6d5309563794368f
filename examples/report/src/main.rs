//! Writes the generated parts of the documents from the committed results, or checks that they are up to date.
//!
//!     cargo run -p report                              rewrite README.md, docs/*.md and docs/plots/*.svg
//!     cargo run -p report -- --check                   fail if a file is not what that would write
//!     cargo run -p report -- --plots out/ladder.json   draw the plots of a result file beside it

#[path = "../../../benches/support/program.rs"]
mod program;

use anyhow::{bail, Context, Result};
use clap::Parser;
use report::record::{write_whole, Report};
use report::{blocks, series};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The generated blocks of the documents, from benches/results/GPU/*.json.
#[derive(Parser, Debug)]
#[command(name = "report")]
struct Arguments {
    /// Write nothing; fail if a file is not up to date
    #[arg(long)]
    check: bool,
    /// The folder that has README.md, docs/ and benches/results/
    #[arg(long, default_value = ".")]
    root: PathBuf,
    /// Draw the plots of these result files beside them, and leave the documents as they are
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "check")]
    plots: Vec<PathBuf>,
}

/// What `folder` has, by name; nothing where there is no such folder.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        paths.push(entry?.path());
    }
    paths.sort();
    Ok(paths)
}

/// Files of `folder` with this extension, by name.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut paths = entries(folder)?;
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    Ok(paths)
}

/// Folders of `folder`, by name.
fn folders(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = entries(folder)?;
    paths.retain(|path| path.is_dir());
    Ok(paths)
}

/// Every file that is generated in whole or in part, with the text that it should have.
fn generate(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut reports = Vec::new();
    for folder in folders(&root.join("benches/results"))? {
        let gpu = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for path in files(&folder, "json")? {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            reports.push((format!("{gpu}-{name}"), Report::read(&path)?));
        }
    }
    let mut generated: Vec<(PathBuf, String)> = Vec::new();
    for (name, svg) in blocks::plots(&reports)? {
        generated.push((root.join("docs/plots").join(name), svg));
    }
    let mut documents = files(&root.join("docs"), "md")?;
    documents.insert(0, root.join("README.md"));
    for path in documents {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let plots = if path.starts_with(root.join("docs")) {
            "plots"
        } else {
            "docs/plots"
        };
        let filled = blocks::fill(&text, &reports, plots).map_err(|e| e.context(path.display().to_string()))?;
        generated.push((path, filled));
    }
    Ok(generated)
}

/// Draws every plot of the result files, beside them.
fn draw(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let plots = series::plots(&Report::read(path)?, &name)?;
        if plots.is_empty() {
            println!("{} has nothing to plot", path.display());
        }
        for (file, svg) in plots {
            let plot = path.with_file_name(file);
            write_whole(&plot, &svg)?;
            println!("wrote {}", plot.display());
        }
    }
    Ok(())
}

fn run(arguments: &Arguments) -> Result<()> {
    if !arguments.plots.is_empty() {
        return draw(&arguments.plots);
    }
    let mut stale = Vec::new();
    for (path, text) in generate(&arguments.root)? {
        if fs::read_to_string(&path).is_ok_and(|old| old == text) {
            continue;
        }
        if !arguments.check {
            write_whole(&path, &text)?;
            println!("wrote {}", path.display());
        }
        stale.push(path.display().to_string());
    }
    if arguments.check && !stale.is_empty() {
        bail!("not up to date: {}; run: cargo run -p report", stale.join(", "));
    }
    Ok(())
}

fn main() -> ExitCode {
    program::main_of("report", run)
}
