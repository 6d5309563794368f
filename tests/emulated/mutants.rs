//! Kernels that are broken on purpose, in one place at a time: does the emulator see it?

use ptx_emulator::Module;
use std::collections::{BTreeMap, BTreeSet};

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Break {
    Wait,
    Parity,
    Arrival,
    Barrier,
    Fence,
    Count,
    Bytes,
    Stage,
    Guard,
    GridWait,
}

impl Break {
    pub const ALL: [Break; 10] = [
        Break::Wait,
        Break::Parity,
        Break::Arrival,
        Break::Barrier,
        Break::Fence,
        Break::Count,
        Break::Bytes,
        Break::Stage,
        Break::Guard,
        Break::GridWait,
    ];

    /// As docs/emulation.md says it.
    pub const fn name(self) -> &'static str {
        match self {
            Break::Wait => "wait",
            Break::Parity => "parity",
            Break::Arrival => "arrival",
            Break::Barrier => "barrier",
            Break::Fence => "fence",
            Break::Count => "count",
            Break::Bytes => "bytes",
            Break::Stage => "stage",
            Break::Guard => "guard",
            Break::GridWait => "grid wait",
        }
    }
}

/// A change of one line.
pub struct Mutant {
    pub kind: Break,
    /// The line of the kernel's own text, from 1.
    pub line: u32,
    /// What was done.
    pub what: String,
    /// The line in its stead.
    pub replacement: String,
}

/// How the description of a guard begins that counts equal numbers differently.
const OFF: &str = "guard off by one";

/// Mutants that are the same kernel: what is changed, fragments of the source around it, and why nothing depends on it.
const EQUIVALENT: &[(&str, &[&str], &str)] = &[
    (
        "left out: bar.warp.sync",
        &["if (APART) __syncwarp();"],
        "it keeps the compiler from mixing reads and arithmetic; lanes exchange nothing",
    ),
    (
        "left out: bar.warp.sync",
        &["read(b[j], b_address, STEPS::b(j));"],
        "it keeps the compiler from mixing reads and arithmetic; lanes exchange nothing",
    ),
    (
        "left out: bar.warp.sync",
        &["produce<CONFIG>(args, r_map, s_map, shared, work);"],
        "it brings lanes together before an aligned barrier, at which the emulator lets them meet",
    ),
    (
        "left out: bar.warp.sync",
        &["ptx::named_barrier_arrive(kStartBarrier, CONFIG::THREADS);"],
        "likewise",
    ),
    (
        "left out: bar.warp.sync",
        &["if (cut) ptx::cluster_wait();"],
        "likewise",
    ),
    (
        "left out: barrier.cluster.wait",
        &["ptx::cluster_wait();   // all have their barriers"],
        "the wait for the vacant rings says as much: each block's producer gives its own free after the cluster has met",
    ),
    (
        "left out: bar.warp.sync",
        &["const int box = lane % kConsumerWarps"],
        "bytes may arrive before they are announced, and each lane has waited for the stage itself",
    ),
    (
        "left out: bar.sync",
        &["if (GROUPS > 1) __syncthreads();"],
        "it is for the block's next tile, and blocks have one",
    ),
    (
        "left out: bar.sync",
        &["__syncthreads();", "TRANSPOSE_KERNELS(copy_02_shared, "],
        "each thread reads what it has written itself",
    ),
    (
        "left out: fence.mbarrier_init",
        &["ptx::fence_async_proxy();"],
        "the proxy fence after it does the same",
    ),
    (
        "left out: fence.proxy.async",
        &["ptx::fence_mbarrier_init();"],
        "the fence before it makes the barriers visible, and nothing else is written",
    ),
    (
        OFF,
        &["if (extent > 1) {"],
        "dividing by an extent of 1 gives what leaving it out gives",
    ),
    (OFF, &["min("], "of two equal numbers either is the smaller"),
    (
        OFF,
        &["const bool whole"],
        "the guarded way gives what the unguarded gives",
    ),
    (OFF, &["const bool inside = extent >= EXTENT"], "likewise"),
    (
        OFF,
        &["if (row_major && tile.row() + BM <= args.m"],
        "likewise",
    ),
    (
        OFF,
        &["if (stores_plainly(args) && args.m - work.row >= BM"],
        "likewise",
    ),
    (
        OFF,
        &["for (uint32_t dim = 0; dim < args.outer_dims; ++dim) {"],
        "the number of the matrix is used up by the dimensions that there are",
    ),
    (
        OFF,
        &["if (vector < vector_count && line < line_count) {"],
        "Epilogue::store() asks the same again",
    ),
    (
        OFF,
        &["if (valid > 0 && window >= begin && end - window >= windows * kWindow) {"],
        "windows that may just be read whole are read number by number",
    ),
    (
        OFF,
        &["if (k < k_end) {"],
        "nothing is valid of a step that begins where k ends",
    ),
    (
        OFF,
        &["for (; k < k_end; k += UNROLL * kStep) {"],
        "a further round multiplies nothing: each of its steps asks again",
    ),
    (
        OFF,
        &["const bool more = k_begin + slab + SHAPE::SLAB_K < k_end;"],
        "likewise",
    ),
    (
        OFF,
        &["for (; k < k_end; k += kStep) {"],
        "a further round multiplies zeros: what it loads is guarded",
    ),
    (
        OFF,
        &["tiles_s = (rows_s + TILE_S - 1) / TILE_S;"],
        "whether there is one tile is asked twice: the number of units says it, too",
    ),
    (
        "left out: bar.warp.sync",
        &["if (threadIdx.x == 0) shared.done = -1;"],
        "the warp meets at the barriers that it arrives at next",
    ),
    (
        "left out: bar.warp.sync",
        &["ptx::named_barrier_sync(kSumsBarrier + finisher, kConsumers + kWarp);"],
        "likewise",
    ),
    (
        "left out: bar.sync",
        &[
            "// Quad v of a thread lies at [v][thread]",
            "FFMA_DIRECT(ffma_direct_128x64_nt_sm90",
        ],
        "with B turned, every step of the loop ends with a barrier",
    ),
    (
        OFF,
        &["kVector <= "],
        "numbers one by one are the same as a vector of them",
    ),
    (
        OFF,
        &["if (at > position) turn.value[i]"],
        "at the position itself the new value takes the zeros' place",
    ),
    (
        OFF,
        &["all = fmaxf(all, __shfl_xor_sync(kWholeWarp, all, bit));"],
        "one more exchange: a larger base scales weights and their sum alike",
    ),
    (
        "index off by one",
        &["line_stream::fetch_ahead<"],
        "the L2 fetches another line ahead of its time, which changes no result",
    ),
    (OFF, &["line_stream::fetch_ahead<"], "likewise"),
    (
        OFF,
        &["operands.fetch_ahead(rank);"],
        "the L2 fetches a key more or less ahead of its time, which changes no result",
    ),
    (
        OFF,
        &["if (next.group < end) fetch(next, "],
        "lines beyond the share are asked for, and not multiplied",
    ),
];

/// A file's PTX with one of its kernels alone.
pub struct Kernel {
    lines: Vec<String>,
    /// Where the kernel's own lines begin.
    first: usize,
    /// Where each line comes from.
    origins: Vec<Origin>,
}

/// A place in the source, and in the source of the function that it was inlined into.
#[derive(Clone, Default)]
struct Origin {
    /// The line before, the line, and the line after it; then the same of the caller.
    around: String,
    /// Files and lines.
    place: String,
}

impl Kernel {
    pub fn new(text: &str, entry: &str) -> Self {
        let all: Vec<&str> = text.lines().collect();
        let is_entry = |line: &str| line.contains(".entry ");
        let head = all.iter().position(|line| is_entry(line)).expect("a kernel");
        let begin = all
            .iter()
            .position(|line| is_entry(line) && line.contains(&format!(" {entry}(")))
            .expect("this kernel");
        let end = (begin + 1..all.len())
            .find(|&at| {
                all[at].contains(".entry ") || all[at].starts_with("\t.file") || all[at].starts_with("\t.section")
            })
            .unwrap_or(all.len());
        let files = all.iter().filter(|line| line.trim_start().starts_with(".file"));
        let kept = all[..head].iter().chain(&all[begin..end]).chain(files);
        let lines: Vec<String> = kept.map(|line| line.to_string()).collect();
        let origins = origins(&all, &lines);
        Kernel {
            lines,
            first: head,
            origins,
        }
    }

    /// The source's last line for a line, its caller's where it was inlined, and where both are.
    pub fn source(&self, line: u32) -> String {
        let Origin { around, place } = &self.origins[line as usize - 1];
        let own = around.lines().skip(1).step_by(3).map(str::trim);
        let last = own.filter(|line| !line.is_empty()).last().unwrap_or_default();
        format!("{place}: {last}")
    }

    /// Why a mutant is the same kernel, if it is.
    pub fn equivalent(&self, mutant: &Mutant) -> Option<&'static str> {
        let around = &self.origins[mutant.line as usize - 1].around;
        EQUIVALENT
            .iter()
            .find(|(what, fragments, _)| {
                mutant.what.starts_with(what) && fragments.iter().all(|part| around.contains(part))
            })
            .map(|(_, _, why)| *why)
    }

    fn with(&self, mutant: Option<&Mutant>) -> Result<Module, ptx_emulator::ParseError> {
        let mut text = String::new();
        for (i, line) in self.lines.iter().enumerate() {
            match mutant {
                Some(mutant) if mutant.line as usize == i + 1 => text += &mutant.replacement,
                _ => text += line,
            }
            text.push('\n');
        }
        Module::parse(&text)
    }

    pub fn module(&self) -> Module {
        self.with(None).expect("it was parsed before")
    }

    pub fn mutated(&self, mutant: &Mutant) -> Module {
        match self.with(Some(mutant)) {
            Ok(module) => module,
            Err(error) => panic!("{}: {error}", mutant.replacement),
        }
    }

    /// All changes of the lines that `covered` lists. A guard is changed only where some thread stands on its edge, as `edges`
    /// says: elsewhere nothing would be different.
    pub fn mutants(&self, covered: &BTreeSet<u32>, edges: &BTreeSet<u32>) -> Vec<Mutant> {
        let mut all = Vec::new();
        let floats = float_bits(&self.lines[self.first..]);
        for &line in covered {
            let at = line as usize - 1;
            if at < self.first {
                continue;
            }
            for (kind, what, replacement) in changes(self.lines[at].trim()) {
                if kind == Break::Guard && !edges.contains(&line) {
                    continue;
                }
                // What becomes a number is no index: a BF16 one is shifted into the upper half of an FP32 one.
                if kind == Break::Stage
                    && destination(&self.lines[at]).is_some_and(|register| floats.contains(register))
                {
                    continue;
                }
                all.push(Mutant {
                    kind,
                    line,
                    what,
                    replacement,
                });
            }
        }
        all
    }
}

/// Registers whose bits become those of floating-point numbers.
fn float_bits(lines: &[String]) -> BTreeSet<&str> {
    let moved = lines.iter().filter_map(|line| {
        let (_, name, operands) = split(line.trim())?;
        let to_float = name == "mov.b32" && operands.len() == 2 && operands[0].starts_with("%f");
        to_float.then(|| operands[1])
    });
    moved.collect()
}

/// The register that an instruction writes.
fn destination(line: &str) -> Option<&str> {
    split(line.trim())?.2.first().copied()
}

/// Where each line of a kernel comes from.
fn origins(all: &[&str], lines: &[String]) -> Vec<Origin> {
    let mut files: BTreeMap<u32, (String, Vec<String>)> = BTreeMap::new();
    for line in all.iter().filter(|line| line.trim_start().starts_with(".file")) {
        let mut words = line.split_whitespace().skip(1);
        let number = words.next().and_then(|word| word.parse().ok());
        let path = line.split('"').nth(1);
        if let (Some(number), Some(path)) = (number, path) {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let name = path.rsplit('/').next().unwrap_or_default().to_string();
            files.insert(number, (name, text.lines().map(str::to_string).collect()));
        }
    }
    let origin = |file: u32, line: usize| -> Origin {
        let none = Default::default();
        let (name, text) = files.get(&file).unwrap_or(&none);
        let at = |line: usize| text.get(line).map_or("", String::as_str);
        let (before, after) = (at(line.wrapping_sub(2)), at(line));
        Origin {
            around: format!("{before}\n{}\n{after}", at(line.wrapping_sub(1))),
            place: format!("{name}:{line}"),
        }
    };
    let mut here = Origin::default();
    let mut list = Vec::with_capacity(lines.len());
    for line in lines {
        if let Some(place) = line.trim_start().strip_prefix(".loc") {
            let numbers =
                |text: &str| -> Vec<usize> { text.split_whitespace().map_while(|word| word.parse().ok()).collect() };
            let own = numbers(place);
            let caller = place
                .split("inlined_at")
                .nth(1)
                .map(numbers)
                .filter(|numbers| numbers.len() >= 2);
            if own.len() >= 2 {
                here = origin(own[0] as u32, own[1]);
            }
            if let Some(caller) = caller {
                let caller = origin(caller[0] as u32, caller[1]);
                here.around = format!("{}\n{}", here.around, caller.around);
                here.place = format!("{} in {}", here.place, caller.place);
            }
        }
        list.push(here.clone());
    }
    list
}

/// Instruction and operands without the semicolon, and a guard before it.
fn split(line: &str) -> Option<(&str, &str, Vec<&str>)> {
    let line = line.strip_suffix(';')?;
    let (guard, rest) = match line.strip_prefix('@') {
        Some(_) => line.split_at(line.find(char::is_whitespace)?),
        None => ("", line),
    };
    let rest = rest.trim();
    let (name, operands) = match rest.find(char::is_whitespace) {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let (mut list, mut depth, mut start) = (Vec::new(), 0, 0);
    for (i, c) in operands.char_indices() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                list.push(operands[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    if !operands[start..].trim().is_empty() {
        list.push(operands[start..].trim());
    }
    Some((guard, name, list))
}

/// The instruction with one operand plus a number.
fn plus(guard: &str, name: &str, operands: &[&str], which: usize, by: i64) -> String {
    let mut changed: Vec<String> = operands.iter().map(|operand| operand.to_string()).collect();
    let old = operands[which];
    match old.parse::<i64>() {
        Ok(number) => {
            changed[which] = (number + by).to_string();
            format!("{guard} {name} {};", changed.join(", "))
        }
        Err(_) => {
            changed[which] = "mutated".to_string();
            format!(
                "{{ .reg .b32 mutated; add.s32 mutated, {old}, {by}; {guard} {name} {}; }}",
                changed.join(", ")
            )
        }
    }
}

/// What can be broken in a line: its kind, in words, and the line in its stead.
fn changes(line: &str) -> Vec<(Break, String, String)> {
    const NOTHING: &str = "";
    let Some((guard, name, o)) = split(line) else {
        return Vec::new();
    };
    let mut list = Vec::new();
    let mut add = |kind, what: &str, replacement: String| list.push((kind, format!("{what}: {line}"), replacement));
    let starts = |start: &str| name.starts_with(start);
    let last = o.len().saturating_sub(1);
    if starts("bar.sync") {
        add(Break::Barrier, "left out", NOTHING.into());
        if o.len() == 2 {
            add(Break::Count, "32 threads less", plus(guard, name, &o, 1, -32));
        }
    } else if starts("bar.arrive") {
        add(Break::Arrival, "left out", NOTHING.into());
        add(Break::Count, "32 threads less", plus(guard, name, &o, 1, -32));
    } else if starts("bar.warp.sync") || starts("barrier.cluster") {
        add(Break::Barrier, "left out", NOTHING.into());
    } else if starts("bar.red") && o.len() == 4 {
        add(Break::Barrier, "left out", format!("mov.pred {}, {};", o[0], o[3]));
    } else if starts("mbarrier.try_wait") && o.len() == 3 {
        add(Break::Wait, "left out", format!("mov.pred {}, 1;", o[0]));
        add(
            Break::Parity,
            "parity flipped",
            format!(
                "{{ .reg .b32 mutated; xor.b32 mutated, {}, 1; {name} {}, {}, mutated; }}",
                o[2], o[0], o[1]
            ),
        );
    } else if starts("mbarrier.arrive.expect_tx") || starts("mbarrier.expect_tx") {
        add(Break::Arrival, "left out", NOTHING.into());
        add(Break::Bytes, "16 bytes more", plus(guard, name, &o, last, 16));
        add(Break::Bytes, "16 bytes less", plus(guard, name, &o, last, -16));
    } else if starts("mbarrier.arrive") {
        add(Break::Arrival, "left out", NOTHING.into());
    } else if starts("mbarrier.init") && o.len() == 2 {
        add(Break::Count, "one arrival more", plus(guard, name, &o, 1, 1));
        if o[1] != "1" {
            add(Break::Count, "one arrival less", plus(guard, name, &o, 1, -1));
        }
    } else if starts("fence.") || starts("membar") || starts("wgmma.fence") {
        add(Break::Fence, "left out", NOTHING.into());
    } else if starts("cp.async.wait_group") || starts("wgmma.wait_group") {
        add(Break::Wait, "left out", NOTHING.into());
        add(Break::Count, "one group fewer", plus(guard, name, &o, 0, 1));
    } else if starts("cp.async.bulk.wait_group") {
        add(Break::Wait, "left out", NOTHING.into());
    } else if starts("cp.async.commit_group") || starts("cp.async.bulk.commit_group") || starts("wgmma.commit") {
        add(Break::Arrival, "left out", NOTHING.into());
    } else if starts("griddepcontrol.wait") {
        add(Break::GridWait, "left out", NOTHING.into());
    } else if starts("st.release") || starts("ld.acquire") {
        let relaxed = line.replace(".release", ".relaxed").replace(".acquire", ".relaxed");
        add(Break::Fence, "relaxed", relaxed);
    } else if starts("setp.")
        && name.matches('.').count() == 2
        && (name.ends_with("s32") || name.ends_with("u32") || name.ends_with("s64"))
    {
        for (from, to) in [(".lt.", ".le."), (".le.", ".lt."), (".gt.", ".ge."), (".ge.", ".gt.")] {
            if name.contains(from) {
                let other = format!("{guard} {} {};", name.replace(from, to), o.join(", "));
                add(Break::Guard, OFF, other);
            }
        }
    } else if (starts("mad.lo.s32") || starts("mul.lo.s32")) && o.len() >= 3 {
        const STAGE: i64 = 512;
        if o[2].parse::<i64>().is_ok_and(|bytes| bytes >= STAGE) {
            add(Break::Stage, "index off by one", plus(guard, name, &o, 1, 1));
        }
    } else if starts("shl.b32") && o.len() == 3 {
        const STAGE_BITS: std::ops::Range<i64> = 10..18;
        if o[2].parse().is_ok_and(|bits: i64| STAGE_BITS.contains(&bits)) {
            add(Break::Stage, "index off by one", plus(guard, name, &o, 1, 1));
        }
    }
    list
}
