//! Costs as a file of this folder.

use super::super::table::TABLE;
use super::terms::{ClusterCosts, MoveCost, ParallelCosts, RepackCosts, SharedCosts, StreamKCosts};
use super::Costs;
use std::fmt::Write;

/// The Rust source of these costs: what `calibrate --export` prints, to be kept as `GPU.rs`. Kernels stand in the order of
/// the table.
pub fn rust_source(costs: &Costs, about: &str) -> String {
    let mut text = format!(
        "{about}
use super::terms::{{ClusterCosts, KernelCost, MoveCost, ParallelCosts, RepackCosts, SharedCosts, StreamKCosts}};

pub(super) const GPU: &str = {:?};

{}
{}
#[rustfmt::skip]
pub(super) const KERNELS: &[(&str, KernelCost)] = &[
",
        costs.gpu,
        shared_source("SHARED", &costs.shared),
        match costs.shared_16 == costs.shared {
            true => "pub(super) const SHARED_16: SharedCosts = SHARED;\n".into(),
            false => shared_source("SHARED_16", &costs.shared_16),
        },
    );
    // A kernel with the costs of another has no line of its own.
    let own = TABLE.iter().filter(|spec| spec.costs_of.is_none());
    for (spec, cost) in own.filter_map(|spec| Some((spec, costs.of(spec)?))) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    ({:?}, {cost:?}),", spec.name);
    }
    text + "];\n"
}

/// The constant of this name.
fn shared_source(name: &str, shared: &SharedCosts) -> String {
    let SharedCosts {
        launch_us,
        early_launch_us,
        pairs_us,
        queue_slices_us,
        l2,
        memory_start_us,
        far,
        off_sectors,
        uneven,
        l2_off_sectors,
        single_line,
        single_outside,
        exposed,
        tail,
        clusters: ClusterCosts {
            us,
            room,
            sums_us,
            round_us,
        },
        parallel:
            ParallelCosts {
                start_us,
                bandwidth,
                round_us: parallel_round_us,
            },
        stream_k:
            StreamKCosts {
                finish,
                piece,
                straddle,
                out_of_step,
            },
        repack:
            RepackCosts {
                copy,
                transpose,
                transpose_unaligned,
                gaps,
                access,
            },
    } = *shared;
    let moved = |MoveCost { start_us, bandwidth }: MoveCost| {
        format!("MoveCost {{ start_us: {start_us:?}, bandwidth: {bandwidth:?} }}")
    };
    let (copy, transpose, transpose_unaligned) = (moved(copy), moved(transpose), moved(transpose_unaligned));
    format!(
        "#[rustfmt::skip]
pub(super) const {name}: SharedCosts = SharedCosts {{
    launch_us: {launch_us:?},
    early_launch_us: {early_launch_us:?},
    pairs_us: {pairs_us:?},
    queue_slices_us: {queue_slices_us:?},
    l2: {l2:?},
    memory_start_us: {memory_start_us:?},
    far: {far:?},
    off_sectors: {off_sectors:?},
    uneven: {uneven:?},
    l2_off_sectors: {l2_off_sectors:?},
    single_line: {single_line:?},
    single_outside: {single_outside:?},
    exposed: {exposed:?},
    tail: {tail:?},
    clusters: ClusterCosts {{
        us: {us:?},
        room: {room:?},
        sums_us: {sums_us:?},
        round_us: {round_us:?},
    }},
    parallel: ParallelCosts {{ start_us: {start_us:?}, bandwidth: {bandwidth:?}, round_us: {parallel_round_us:?} }},
    stream_k: StreamKCosts {{ finish: {finish:?}, piece: {piece:?}, straddle: {straddle:?}, out_of_step: {out_of_step:?} }},
    repack: RepackCosts {{
        copy: {copy},
        transpose: {transpose},
        transpose_unaligned: {transpose_unaligned},
        gaps: {gaps:?},
        access: {access:?},
    }},
}};
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceInfo;

    #[test]
    fn a_file_of_this_folder_is_what_its_costs_export() {
        let file = include_str!("h100.rs");
        let about = &file[..file.find("\nuse ").unwrap() + 1]
            .trim_end_matches('\n')
            .to_string();
        let costs = Costs::built_in(&DeviceInfo::H100);
        let exported = rust_source(costs, &format!("{about}\n"));
        for (line, (exported, kept)) in exported.lines().zip(file.lines()).enumerate() {
            assert_eq!(exported, kept, "line {}", line + 1);
        }
        assert_eq!(exported, file);
    }
}
