//! Each check on a small kernel that it must complain about, and on one that it must not.

use ptx_emulator::{
    run, Element, Finding, Kind, Launch, Memory, Module, Order, Param, Report, Schedule, Swizzle, TensorMap, Use, Watch,
};

const HEAD: &str = ".version 8.0\n.target sm_90a\n.address_size 64\n";

/// A kernel of two 64-bit parameters, with some registers and shared memory.
fn kernel(body: &str) -> Module {
    let text = format!(
        "{HEAD}
.visible .entry k(.param .u64 a, .param .u64 b)
{{
    .reg .pred %p<20>;
    .reg .b32 %r<60>;
    .reg .f32 %f<60>;
    .reg .b64 %rd<40>;
    .shared .align 1024 .b8 stage[8192];
    .shared .align 8 .b8 bar[64];
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, stage;
    mov.u32 %r4, bar;
    shl.b32 %r5, %r1, 2;
    add.s32 %r6, %r3, %r5;
    cvt.u64.u32 %rd3, %r5;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
{body}
    ret;
}}"
    );
    Module::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

struct Try {
    launch: Launch,
    memory: Memory,
    module: Module,
}

impl Try {
    /// One block of 64 threads; `a` is an input of 4096 bytes, `b` an output of as many.
    fn new(body: &str) -> Self {
        let mut memory = Memory::new();
        let input: Vec<u8> = (0..1024u32).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let a = memory.upload(&input, Use::Input);
        let b = memory.reserve(4096);
        Try {
            launch: Launch::new("k", 1, 64).param(a).param(b),
            memory,
            module: kernel(body),
        }
    }

    fn run_with(&mut self, order: Order, seed: u64) -> Result<Report, Box<Finding>> {
        run(&self.module, &self.launch, &mut self.memory, Schedule { order, seed })
    }
}

/// What is found under every order with some seeds: nothing everywhere, or something everywhere, which may be named
/// differently where the schedule decides what shows first.
fn outcomes(make: impl Fn() -> Try) -> Vec<Kind> {
    let mut kinds = Vec::new();
    let mut clean = 0;
    for order in Order::ALL {
        for seed in 0..3 {
            match make().run_with(order, seed) {
                Ok(_) => clean += 1,
                Err(finding) => {
                    assert!(finding.to_string().contains("seed"), "{finding}");
                    if !kinds.contains(&finding.kind) {
                        kinds.push(finding.kind);
                    }
                }
            }
        }
    }
    assert!(
        clean == 0 || kinds.is_empty(),
        "{clean} schedules found nothing, others {kinds:?}"
    );
    kinds
}

/// The same where there is only one name for it.
fn outcome(make: impl Fn() -> Try) -> Option<Kind> {
    let kinds = outcomes(make);
    assert!(kinds.len() < 2, "schedules disagree: {kinds:?}");
    kinds.first().copied()
}

fn within(kinds: &[Kind], allowed: &[Kind]) {
    assert!(
        !kinds.is_empty() && kinds.iter().all(|kind| allowed.contains(kind)),
        "{kinds:?}"
    );
}

fn block(body: &str) -> Option<Kind> {
    outcome(|| Try::new(body))
}

#[test]
fn bounds_and_alignment() {
    assert_eq!(block("ld.global.f32 %f1, [%rd4]; st.global.f32 [%rd5], %f1;"), None);
    assert_eq!(block("ld.global.f32 %f1, [%rd4+4092];"), Some(Kind::OutOfBounds));
    assert_eq!(block("ld.global.f32 %f1, [%rd4+-4];"), Some(Kind::OutOfBounds));
    assert_eq!(block("ld.global.v2.f32 {%f1, %f2}, [%rd4];"), Some(Kind::Misaligned));
    assert_eq!(
        block("mov.u32 %r9, 0; st.shared.u32 [%r9], %r1;"),
        Some(Kind::OutOfBounds)
    );
    assert_eq!(block("st.shared.u32 [%r6+2], %r1;"), Some(Kind::Misaligned));
    assert_eq!(block("st.shared.u32 [%r6+8256], %r1;"), Some(Kind::OutOfBounds));
    assert_eq!(block("st.global.f32 [%rd4], 0f00000000;"), Some(Kind::ReadOnly));
    assert_eq!(block("ld.param.u64 %rd9, [a+9];"), Some(Kind::OutOfBounds));
}

/// Pieces of one operand, gigabytes apart: what lies between them is no memory.
#[test]
fn pieces_far_apart() {
    const APART: u64 = 5 << 30;
    let attempt = |offset: u64| {
        outcome(|| {
            let mut attempt = Try::new(&format!(
                "ld.global.f32 %f1, [%rd4+{offset}]; st.global.f32 [%rd5], %f1;"
            ));
            let a = attempt.memory.claim(APART + 256);
            attempt.memory.upload_at(a, &[0; 256], Use::Input);
            attempt.memory.upload_at(a + APART, &[0; 256], Use::Input);
            let b = attempt.memory.reserve(4096);
            attempt.launch = Launch::new("k", 1, 64).param(a).param(b);
            attempt
        })
    };
    assert_eq!(attempt(0), None);
    assert_eq!(attempt(APART), None);
    for beside in [4, 1 << 30, APART - 4, APART + 4] {
        assert_eq!(attempt(beside), Some(Kind::OutOfBounds), "{beside}");
    }
}

#[test]
#[should_panic(expected = "allocations are in order")]
fn pieces_come_in_order() {
    let mut memory = Memory::new();
    let a = memory.claim(8192);
    memory.reserve_at(a + 4096, 64);
    memory.reserve_at(a, 64);
}

#[test]
#[should_panic(expected = "only what was claimed is allocated")]
fn pieces_stay_within_their_claim() {
    let mut memory = Memory::new();
    let a = memory.claim(8192);
    memory.reserve_at(a + 8192 - 32, 64);
}

#[test]
fn memory_that_nothing_wrote() {
    assert_eq!(block("ld.global.f32 %f1, [%rd5];"), Some(Kind::Uninitialised));
    // In shared memory, values may be read that nothing wrote, but nothing may depend on them.
    assert_eq!(block("ld.shared.f32 %f1, [%r6];"), None);
    let load = "ld.shared.f32 %f1, [%r6]; add.f32 %f2, %f1, %f1;";
    assert_eq!(
        block(&format!("{load} st.global.f32 [%rd5], %f2;")),
        Some(Kind::Uninitialised)
    );
    assert_eq!(
        block(&format!("{load} mov.f32 %f2, 0f00000000; st.global.f32 [%rd5], %f2;")),
        None
    );
    assert_eq!(
        block(&format!("{load} setp.gt.f32 %p1, %f2, 0f00000000;\n@%p1 bra A;\nA:")),
        Some(Kind::Uninitialised)
    );
    let through = "st.shared.f32 [%r6+4096], %f2; ld.shared.f32 %f3, [%r6+4096]; st.global.f32 [%rd5], %f3;";
    assert_eq!(block(&format!("{load} {through}")), Some(Kind::Uninitialised));
    let selected = "setp.eq.s32 %p1, %r2, 0; selp.f32 %f3, 0f3F800000, %f2, %p1; st.global.f32 [%rd5], %f3;";
    assert_eq!(block(&format!("{load} {selected}")), None);
    assert_eq!(block("st.shared.u32 [%r6], %r1; ld.shared.u32 %r9, [%r6];"), None);
    // Of several registers that are loaded or stored at a time, each is one or the other.
    let pair = "add.s32 %r9, %r6, %r5; st.shared.f32 [%r9], 0f00000000; ld.shared.v2.f32 {%f1, %f2}, [%r9];";
    assert_eq!(block(&format!("{pair} st.global.f32 [%rd5], %f1;")), None);
    assert_eq!(
        block(&format!("{pair} st.global.f32 [%rd5], %f2;")),
        Some(Kind::Uninitialised)
    );
    let again = "st.shared.v2.f32 [%r9+4096], {%f1, %f2}; ld.shared.v2.f32 {%f3, %f4}, [%r9+4096];";
    assert_eq!(block(&format!("{pair} {again} st.global.f32 [%rd5], %f3;")), None);
    assert_eq!(
        block(&format!("{pair} {again} st.global.f32 [%rd5], %f4;")),
        Some(Kind::Uninitialised)
    );
}

#[test]
fn results_are_those_of_the_program() {
    let mut attempt =
        Try::new("ld.global.f32 %f1, [%rd4]; fma.rn.f32 %f2, %f1, %f1, 0f3F800000; st.global.f32 [%rd5], %f2;");
    attempt.run_with(Order::Random, 7).unwrap();
    let base = 0x10_0000_0000 + 8192;
    for i in 0..64 {
        let word = attempt.memory.read(base + 4 * i, 4).unwrap();
        let value = f32::from_le_bytes(word.try_into().unwrap());
        assert_eq!(value, (i * i + 1) as f32);
    }
    assert_eq!(attempt.memory.first_unwritten(base, 4096), Some(base + 256));
}

/// Each thread reads what its neighbour in the other warp wrote.
const EXCHANGE: &str = "
    st.shared.u32 [%r6], %r1;
    BARRIER
    xor.b32 %r10, %r5, 128;
    add.s32 %r11, %r3, %r10;
    ld.shared.u32 %r12, [%r11];
    st.global.u32 [%rd5], %r12;";

#[test]
fn races_between_warps() {
    assert_eq!(block(&EXCHANGE.replace("BARRIER", "bar.sync 0;")), None);
    assert_eq!(block(&EXCHANGE.replace("BARRIER", "bar.sync 1, 64;")), None);
    let kinds = outcomes(|| Try::new(&EXCHANGE.replace("BARRIER", "bar.warp.sync -1;")));
    within(&kinds, &[Kind::Uninitialised, Kind::SharedRace]);
}

#[test]
fn races_within_a_warp() {
    let inside = EXCHANGE.replace("128", "4");
    assert_eq!(block(&inside.replace("BARRIER", "bar.warp.sync -1;")), None);
    assert_eq!(block(&inside.replace("BARRIER", "")), Some(Kind::SharedRace));
    // A shuffle orders nothing.
    assert_eq!(
        block(&inside.replace("BARRIER", "shfl.sync.idx.b32 %r20, %r1, 0, 31, -1;")),
        Some(Kind::SharedRace)
    );
}

#[test]
fn reads_are_not_overtaken_by_writes() {
    let text = "
    st.shared.u32 [%r6], %r1;
    bar.sync 0;
    xor.b32 %r10, %r5, 128;
    add.s32 %r11, %r3, %r10;
    ld.shared.u32 %r12, [%r11];
    BARRIER
    st.shared.u32 [%r6], %r12;";
    assert_eq!(block(&text.replace("BARRIER", "bar.sync 0;")), None);
    assert_eq!(block(&text.replace("BARRIER", "")), Some(Kind::SharedRace));
}

#[test]
fn copies_of_threads_need_a_wait() {
    let text = "
    cp.async.ca.shared.global [%r6], [%rd4], 4, 4;
    cp.async.commit_group;
    WAIT
    ld.shared.f32 %f1, [%r6];
    st.global.f32 [%rd5], %f1;";
    assert_eq!(block(&text.replace("WAIT", "cp.async.wait_group 0;")), None);
    assert_eq!(
        block(&text.replace("WAIT", "cp.async.wait_group 1;")),
        Some(Kind::SharedRace)
    );
    assert_eq!(block(&text.replace("WAIT", "")), Some(Kind::SharedRace));
    // Only the thread that waits knows, until a barrier.
    let other = "
    cp.async.ca.shared.global [%r6], [%rd4], 4;
    cp.async.wait_all;
    BARRIER
    xor.b32 %r10, %r5, 128;
    add.s32 %r11, %r3, %r10;
    ld.shared.u32 %r12, [%r11];";
    let all = other.replace("cp.async.wait_all", "cp.async.commit_group; cp.async.wait_group 0");
    assert_eq!(block(&all.replace("BARRIER", "bar.sync 0;")), None);
}

#[test]
fn copies_arrive_at_a_barrier_by_themselves() {
    let text = "
    setp.ne.s32 %p1, %r1, 0;
    @%p1 bra GO;
    mbarrier.init.shared::cta.b64 [%r4], 64;
GO:
    bar.sync 0;
    cp.async.ca.shared.global [%r6], [%rd4], 4;
    cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r4];
    xor.b32 %r10, %r5, 128;
    add.s32 %r11, %r3, %r10;
    WAIT
    AGAIN";
    let go = |wait: &str, again: &str| block(&text.replace("WAIT", wait).replace("AGAIN", again));
    // Whoever waits for the barrier knows that all copies have been made: others' and its own, which it may read and copy over.
    for again in [
        "ld.shared.u32 %r12, [%r11];",
        "ld.shared.u32 %r12, [%r6];",
        "cp.async.ca.shared.global [%r6], [%rd4], 4;\ncp.async.commit_group;\ncp.async.wait_group 0;",
    ] {
        assert_eq!(go(WAIT, again), None, "{again}");
        assert_eq!(go("", again), Some(Kind::SharedRace), "{again}");
    }
}

#[test]
fn copies_may_ignore_their_source() {
    // Where the predicate is true nothing is read, wherever the address leads, and zeros arrive.
    let text = "
    setp.COMPARE.s32 %p1, %r1, 0;
    cp.async.ca.shared.global [%r6], [%rd4+4096], 4, %p1;
    cp.async.commit_group;
    cp.async.wait_group 0;
    ld.shared.u32 %r12, [%r6];
    setp.ne.s32 %p2, %r12, 0;
    @%p2 st.shared.u32 [%r6+2], %r1;";
    assert_eq!(block(&text.replace("COMPARE", "ge")), None);
    assert_eq!(
        block(&text.replace("COMPARE", "gt")),
        Some(Kind::OutOfBounds),
        "thread 0 reads"
    );
}

/// Thread 0 has a box of 8 rows of 32 numbers copied; all read it.
const TMA: &str = "
    setp.ne.s32 %p1, %r1, 0;
    @%p1 bra START;
    mbarrier.init.shared::cta.b64 [%r4], 1;
    PUBLISH
START:
    bar.sync 0;
    @%p1 bra READ;
    mov.b64 %rd10, m;
    cvta.param.u64 %rd11, %rd10;
    mov.u32 %r20, 0;
    EXPECT
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd11, {%r20, %r20}], [%r4];
READ:
    WAIT
    ld.shared.f32 %f1, [%r6];
    setp.gt.f32 %p9, %f1, 0f00000000;
    @%p9 bra TAKEN;
TAKEN:
    AFTER";

const WAIT: &str = "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%r4], 0; @done bra over; bra again; over: }";
const EXPECT: &str = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 1024;";

fn with_map(body: &str) -> Try {
    let mut attempt = Try::new("");
    let source = format!(
        "{HEAD}
.visible .entry k(.param .u64 a, .param .u64 b, .param .align 128 .b8 m[128])
{{
    .reg .pred %p<20>;
    .reg .b32 %r<60>;
    .reg .f32 %f<60>;
    .reg .b64 %rd<40>;
    .shared .align 1024 .b8 stage[8192];
    .shared .align 8 .b8 bar[64];
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    mov.u32 %r1, %tid.x;
    mov.u32 %r3, stage;
    mov.u32 %r4, bar;
    shl.b32 %r5, %r1, 2;
    add.s32 %r6, %r3, %r5;
{body}
    ret;
}}"
    );
    attempt.module = Module::parse(&source).unwrap_or_else(|error| panic!("{error}\n{source}"));
    attempt.launch.params.push(Param::Map(TensorMap {
        address: 0x10_0000_0000,
        extents: vec![32, 32],
        strides: vec![128],
        box_extents: vec![32, 8],
        element: Element::Bits32,
        swizzle: Swizzle::Bytes128,
    }));
    attempt
}

fn tma_text(expect: &str, wait: &str, after: &str) -> String {
    let publish = "fence.mbarrier_init.release.cluster;";
    let text = TMA.replace("PUBLISH", publish);
    text.replace("EXPECT", expect)
        .replace("WAIT", wait)
        .replace("AFTER", after)
}

fn tma(expect: &str, wait: &str, after: &str) -> Option<Kind> {
    outcome(|| with_map(&tma_text(expect, wait, after)))
}

#[test]
fn bulk_copies_need_a_wait() {
    assert_eq!(tma(EXPECT, WAIT, ""), None);
    // The parity of the phase before: the wait is over at once.
    let early = tma_text(EXPECT, &WAIT.replace(", 0;", ", 1;"), "");
    within(&outcomes(|| with_map(&early)), &[Kind::Uninitialised, Kind::SharedRace]);
}

#[test]
fn copies_use_mbarriers_that_were_made_visible() {
    let text = tma_text(EXPECT, WAIT, "").replace("fence.mbarrier_init.release.cluster;", "");
    assert_eq!(outcome(|| with_map(&text)), Some(Kind::Mbarrier));
}

#[test]
fn transaction_counts_have_to_match() {
    assert_eq!(tma(&EXPECT.replace("1024", "1040"), WAIT, ""), Some(Kind::Deadlock));
    assert_eq!(tma(&EXPECT.replace("1024", "512"), WAIT, ""), Some(Kind::Deadlock));
    // The bytes of one copy are announced, and two are made.
    let two = format!(
        "{EXPECT}
    add.s32 %r21, %r3, 1024;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r21], [%rd11, {{%r20, %r20}}], [%r4];"
    );
    assert_eq!(tma(&two, WAIT, ""), Some(Kind::TransactionCount));
    assert_eq!(tma(&two.replace("_, [%r4], 1024", "_, [%r4], 2048"), WAIT, ""), None);
}

#[test]
fn a_stage_is_not_overwritten_while_it_is_read() {
    let again = "
    @%p1 bra OVER;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 1024;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd11, {%r20, %r20}], [%r4];
OVER:
    { .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%r4], 1; @done bra over; bra again; over: }";
    assert_eq!(tma(EXPECT, WAIT, &format!("bar.sync 0;{again}")), None);
    assert_eq!(tma(EXPECT, WAIT, again), Some(Kind::SharedRace));
}

#[test]
fn ordinary_writes_need_a_proxy_fence_before_a_bulk_store() {
    let text = "
    mov.b64 %rd10, m;
    cvta.param.u64 %rd11, %rd10;
    mov.u32 %r20, 0;
    st.shared.v4.u32 [%r7], {%r1, %r1, %r1, %r1};
    FENCE
    bar.sync 0;
    setp.ne.s32 %p1, %r1, 0;
    @%p1 bra OVER;
    cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd11, {%r20, %r20}], [%r3];
    cp.async.bulk.commit_group;
    WAIT
    AFTER
OVER:";
    let go = |fence: &str, wait: &str, after: &str| {
        outcome(|| {
            let text = text
                .replace("FENCE", fence)
                .replace("WAIT", wait)
                .replace("AFTER", after);
            let body = format!("shl.b32 %r8, %r1, 4;\nadd.s32 %r7, %r3, %r8;\n{text}");
            let mut attempt = with_map(&body);
            let b = attempt.memory.upload(&[0; 4096], Use::Any);
            if let Some(Param::Map(map)) = attempt.launch.params.last_mut() {
                map.address = b;
            }
            attempt
        })
    };
    let (fence, wait) = ("fence.proxy.async.shared::cta;", "cp.async.bulk.wait_group.read 0;");
    assert_eq!(go(fence, wait, ""), None);
    assert_eq!(go("", wait, ""), Some(Kind::ProxyFence));
    assert_eq!(go(fence, wait, "st.shared.u32 [%r3], %r1;"), None);
    assert_eq!(go(fence, "", "st.shared.u32 [%r3], %r1;"), Some(Kind::SharedRace));
    // A block does not leave memory that is still read.
    assert_eq!(go(fence, "", ""), Some(Kind::Unfinished));
}

#[test]
fn the_story_of_a_byte_and_of_a_barrier() {
    let story = |watch: &str| {
        let mut attempt = Try::new("st.shared.u32 [%r6], %r1;\nbar.sync 0;\nld.shared.u32 %r10, [%r3];\n");
        attempt.launch.watch = Some(watch.parse().expect("something to watch"));
        attempt
            .run_with(Order::RoundRobin, 0)
            .expect("a kernel that is right")
            .story
            .join("\n")
    };
    let byte = story("0x401"); // of the first word: `stage` begins on a multiple of 1024
    assert!(byte.contains("thread 0: writes 4 bytes at 0x400"), "{byte}");
    assert!(
        byte.contains("32 threads from 32 to 63: reads 4 bytes at 0x400"),
        "{byte}"
    );
    let barrier = story("barrier 0");
    assert!(
        barrier.contains("comes to barrier 0") && barrier.contains("all are at barrier 0"),
        "{barrier}"
    );
    assert!("barrier".parse::<Watch>().is_err() && "0xyz".parse::<Watch>().is_err());
}

/// A warpgroup multiplies a tile of ones by itself.
fn wgmma(before: &str, between: &str, wait: &str, after: &str) -> Option<Kind> {
    let text = format!(
        "
    mov.u32 %r20, 0x3f800000;
    shl.b32 %r8, %r1, 4;
    add.s32 %r7, %r3, %r8;
    st.shared.v4.u32 [%r7], {{%r20, %r20, %r20, %r20}};
    {before}
    bar.sync 0;
    mov.f32 %f1, 0f00000000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1;
    cvt.u64.u32 %rd10, %r3;
    shr.u64 %rd11, %rd10, 4;
    or.b64 %rd12, %rd11, 68720001024;
    {between}
    wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {{%f1, %f2, %f3, %f4}}, {{%r20, %r20, %r20, %r20}}, %rd12, 1, 1, 1;
    wgmma.commit_group.sync.aligned;
    {wait}
    {after}"
    );
    outcome(|| {
        let mut attempt = Try::new(&text);
        attempt.launch.block = [128, 1, 1];
        attempt
    })
}

#[test]
fn the_registers_and_operands_of_wgmma() {
    let (proxy, fence, wait) = (
        "fence.proxy.async.shared::cta;",
        "wgmma.fence.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
    );
    let store = "st.global.f32 [%rd5], %f1;";
    assert_eq!(wgmma(proxy, fence, wait, store), None);
    assert_eq!(wgmma("", fence, wait, store), Some(Kind::ProxyFence));
    assert_eq!(wgmma(proxy, "", wait, store), Some(Kind::WgmmaRegisters));
    assert_eq!(wgmma(proxy, fence, "", store), Some(Kind::WgmmaRegisters));
    assert_eq!(
        wgmma(proxy, fence, "wgmma.wait_group.sync.aligned 1;", store),
        Some(Kind::WgmmaRegisters)
    );
    // The tile is overwritten while it may still be read.
    let overwrite = "st.shared.u32 [%r7], %r1;";
    assert_eq!(wgmma(proxy, fence, wait, &format!("bar.sync 0; {overwrite}")), None);
    assert_eq!(
        wgmma(proxy, fence, "", &format!("bar.sync 0; {overwrite}")),
        Some(Kind::SharedRace)
    );
}

/// A lane overwrites what another one has read: behind a shuffle that gives it what the other made of that, nothing can be late.
#[test]
fn what_is_made_of_a_read_comes_after_it() {
    let go = |body: &str| {
        outcome(|| {
            let head = "
    xor.b32 %r20, %r1, 1;
    mul.wide.u32 %rd20, %r20, 4;
    add.s64 %rd21, %rd2, %rd20;
";
            let mut attempt = Try::new(&format!("{head}{body}"));
            let b = attempt.memory.upload(&[0; 4096], Use::Any);
            attempt.launch.params[1] = b.into();
            attempt
        })
    };
    let (read, give, write) = (
        "ld.global.u32 %r30, [%rd5];",
        "shfl.sync.bfly.b32 %r31|%p2, %r30, 1, 31, -1;",
        "st.global.u32 [%rd21], %r31;",
    );
    assert_eq!(go(&format!("{read} {give} {write}")), None);
    // Without the shuffle, or where the other one reads on after it, the read may come later.
    assert_eq!(go(&format!("mov.u32 %r31, 7; {read} {write}")), Some(Kind::GlobalRace));
    assert_eq!(go(&format!("{read} {give} {read} {write}")), Some(Kind::GlobalRace));
    // What comes from a third lane is no news of the second one, unless that has it from there.
    let further = "shfl.sync.bfly.b32 %r31|%p2, %r30, 2, 31, -1;";
    assert_eq!(go(&format!("{read} {further} {write}")), Some(Kind::GlobalRace));
    let on = "shfl.sync.bfly.b32 %r30|%p2, %r30, 2, 31, -1; shfl.sync.bfly.b32 %r31|%p2, %r30, 3, 31, -1;";
    assert_eq!(go(&format!("{read} {on} {write}")), None);
}

#[test]
fn blocks_of_the_grid_exchange_data_by_flags() {
    let text = "
    setp.ne.s32 %p1, %r2, 0;
    setp.ne.s32 %p2, %r1, 0;
    @%p1 bra READER;
    st.global.u32 [%rd5], %r1;
    bar.sync 0;
    @%p2 bra OVER;
    mov.u64 %rd20, 7;
    RELEASE
    bra OVER;
READER:
LOOK:
    ACQUIRE
    setp.ne.s64 %p3, %rd21, 7;
    @%p3 bra LOOK;
    ld.global.u32 %r30, [%rd5];
OVER:";
    let go = |release: &str, acquire: &str| {
        outcome(|| {
            let mut attempt = Try::new(&text.replace("RELEASE", release).replace("ACQUIRE", acquire));
            attempt.launch.grid = [2, 1, 1];
            let b = attempt.memory.upload(&[0; 4096], Use::Any);
            attempt.launch.params[1] = b.into();
            attempt
        })
    };
    let (release, acquire) = (
        "st.release.gpu.global.u64 [%rd2+2048], %rd20;",
        "ld.acquire.gpu.global.u64 %rd21, [%rd2+2048];",
    );
    assert_eq!(go(release, acquire), None);
    assert_eq!(
        go(
            "fence.acq_rel.gpu; st.relaxed.gpu.global.u64 [%rd2+2048], %rd20;",
            acquire
        ),
        None
    );
    assert_eq!(
        go("st.relaxed.gpu.global.u64 [%rd2+2048], %rd20;", acquire),
        Some(Kind::GlobalRace)
    );
    assert_eq!(
        go(release, "ld.relaxed.gpu.global.u64 %rd21, [%rd2+2048];"),
        Some(Kind::GlobalRace)
    );
    assert_eq!(
        go(
            release,
            "ld.relaxed.gpu.global.u64 %rd21, [%rd2+2048]; fence.acq_rel.gpu;"
        ),
        None
    );
    assert_eq!(go("st.global.u64 [%rd2+2048], %rd20;", acquire), Some(Kind::GlobalRace));
}

#[test]
fn the_last_block_of_a_count_may_read() {
    let text = "
    mul.lo.s32 %r31, %r2, 256;
    cvt.u64.u32 %rd30, %r31;
    add.s64 %rd31, %rd5, %rd30;
    st.global.u32 [%rd31], %r1;
    bar.sync 0;
    setp.ne.s32 %p2, %r1, 0;
    @%p2 bra OVER;
    FENCE
    atom.global.add.u32 %r32, [%rd2+4092], 1;
    setp.ne.s32 %p3, %r32, 3;
    @%p3 bra OVER;
    FENCE
    ld.global.u32 %r33, [%rd2];
    ld.global.u32 %r34, [%rd2+256];
    ld.global.u32 %r35, [%rd2+512];
    mov.u32 %r36, 0;
    st.global.u32 [%rd2+4092], %r36;
OVER:";
    let go = |fence: &str| {
        outcome(|| {
            let mut attempt = Try::new(&text.replace("FENCE", fence));
            attempt.launch.grid = [4, 1, 1];
            let b = attempt.memory.upload(&[0; 4096], Use::Any);
            attempt.launch.params[1] = b.into();
            attempt
        })
    };
    assert_eq!(go("membar.gl;"), None);
    assert_eq!(go(""), Some(Kind::GlobalRace));
}

#[test]
fn barriers_that_not_all_reach() {
    assert_eq!(
        block("setp.lt.s32 %p1, %r1, 32;\n@%p1 bar.sync 1, 64;"),
        Some(Kind::Deadlock)
    );
    assert_eq!(block("bar.sync 1, 64;"), None);
    let counts = "setp.lt.s32 %p1, %r1, 32;\n@%p1 bra A;\nbar.sync 1, 64;\nbra B;\nA:\nbar.sync 1, 32;\nB:";
    within(&outcomes(|| Try::new(counts)), &[Kind::Barrier, Kind::Deadlock]);
    assert_eq!(block("bar.sync 1, 96;"), Some(Kind::Barrier));
    // Half a warp waits for the other half, which has gone another way.
    assert_eq!(
        block("and.b32 %r9, %r1, 1;\nsetp.eq.s32 %p1, %r9, 0;\n@%p1 bra A;\nbar.sync 0;\nbra B;\nA:\nbar.sync 0;\nB:"),
        Some(Kind::Deadlock)
    );
}

#[test]
fn mbarriers_are_initialised_once_and_known() {
    assert_eq!(block("mbarrier.arrive.shared::cta.b64 _, [%r4];"), Some(Kind::Mbarrier));
    let init = "
    setp.ne.s32 %p1, %r1, 0;
    @%p1 bra GO;
    mbarrier.init.shared::cta.b64 [%r4], 64;
GO:
    BARRIER
    mbarrier.arrive.shared::cta.b64 _, [%r4];
    WAIT";
    let go = |barrier: &str, wait: &str| block(&init.replace("BARRIER", barrier).replace("WAIT", wait));
    assert_eq!(go("bar.sync 0;", WAIT), None);
    assert_eq!(go("bar.sync 0;", "mbarrier.arrive.shared::cta.b64 _, [%r4];"), None);
    assert_eq!(go("bar.warp.sync -1;", WAIT), Some(Kind::Mbarrier));
    assert_eq!(
        go("bar.sync 0; st.shared.u32 [%r4+4], %r1;", WAIT),
        Some(Kind::Mbarrier)
    );
    assert_eq!(
        go(
            "bar.sync 0;",
            &WAIT.replace("], 0;", "], 0; mbarrier.inval.shared::cta.b64 [%r4];")
        ),
        Some(Kind::Mbarrier)
    );
}

/// Each block of a pair reads the other's shared memory.
fn pair(before: &str, after: &str) -> Option<Kind> {
    let text = format!(
        "
    st.shared.u32 [%r6], %r1;
    {before}
    mov.u32 %r40, %cluster_ctarank;
    xor.b32 %r41, %r40, 1;
    mapa.shared::cluster.u32 %r42, %r6, %r41;
    ld.shared::cluster.u32 %r43, [%r42];
    {after}"
    );
    outcome(|| {
        let mut attempt = Try::new(&text);
        attempt.launch.grid = [4, 1, 1];
        attempt.launch.cluster = [2, 1, 1];
        attempt
    })
}

#[test]
fn blocks_of_a_cluster_wait_for_each_other() {
    let sync = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";
    assert_eq!(pair(sync, sync), None);
    assert_eq!(pair(sync, ""), Some(Kind::ClusterExit));
    assert_eq!(
        block("mapa.shared::cluster.u32 %r42, %r6, 1; ld.shared::cluster.u32 %r43, [%r42];"),
        Some(Kind::OutOfBounds)
    );
}

#[test]
fn an_early_launch_waits_before_it_touches_memory() {
    let go = |body: &str| {
        outcome(|| {
            let mut attempt = Try::new(body);
            attempt.launch.early = true;
            attempt
        })
    };
    assert_eq!(go("griddepcontrol.wait; ld.global.f32 %f1, [%rd4];"), None);
    assert_eq!(
        go("ld.global.f32 %f1, [%rd4]; griddepcontrol.wait;"),
        Some(Kind::BeforeGridWait)
    );
    // Behind the wait, too, for the compiler may move it.
    assert_eq!(
        go("griddepcontrol.wait; ld.global.nc.f32 %f1, [%rd4];"),
        Some(Kind::BeforeGridWait)
    );
    // One thread's wait is another's knowledge only through a barrier.
    let one = "setp.ne.s32 %p1, %r1, 0;\n@%p1 bra A;\ngriddepcontrol.wait;\nA:\nBARRIER\nld.global.f32 %f1, [%rd4];";
    assert_eq!(go(&one.replace("BARRIER", "bar.sync 0;")), None);
    assert_eq!(go(&one.replace("BARRIER", "")), Some(Kind::BeforeGridWait));
}

#[test]
fn only_declared_atomics_come_before_that_wait() {
    let go = |body: &str| {
        outcome(|| {
            let mut attempt = Try::new(body);
            let counters = attempt.memory.upload(&[0; 8], Use::Any);
            attempt.launch.early = true;
            attempt.launch.early_atomics.push(counters..counters + 4);
            attempt.launch.params[1] = counters.into();
            attempt
        })
    };
    assert_eq!(go("atom.relaxed.gpu.global.inc.u32 %r10, [%rd2], 63;"), None);
    for other in [
        "atom.relaxed.gpu.global.inc.u32 %r10, [%rd2+4], 63;",
        "ld.relaxed.gpu.global.u32 %r10, [%rd2];",
        "st.relaxed.gpu.global.u32 [%rd2], 0;",
    ] {
        assert_eq!(go(other), Some(Kind::BeforeGridWait), "{other}");
    }
}

#[test]
fn a_program_that_never_ends_is_given_up() {
    assert_eq!(block("A:\nbra A;"), Some(Kind::Livelock));
    assert_eq!(block("trap;"), Some(Kind::Trap));
}

#[test]
fn what_is_lacking_is_named() {
    let parse = |line: &str| {
        Module::parse(&format!(
            "{HEAD}.visible .entry k()\n{{\n.reg .b32 %r<9>;\n{line}\nret;\n}}"
        ))
    };
    let error = parse("dp4a.s32.s32 %r1, %r2, %r3, %r4;").unwrap_err();
    assert!(error.message.contains("dp4a.s32.s32"), "{error}");
    assert_eq!(error.line, 7);
    assert!(parse("add.s32 %r1, %r2, %r33;").unwrap_err().message.contains("%r33"));
    assert!(parse("bra NOWHERE;").unwrap_err().message.contains("NOWHERE"));
}

#[test]
fn a_seed_repeats_a_run() {
    let make = || {
        let mut attempt = Try::new(&EXCHANGE.replace("BARRIER", ""));
        attempt.launch.block = [256, 1, 1];
        attempt
    };
    let findings: Vec<_> = (0..2)
        .map(|_| make().run_with(Order::Random, 11).unwrap_err())
        .collect();
    assert_eq!(findings[0], findings[1]);
}

#[test]
fn lanes_that_part_come_together_again() {
    // A loop of as many rounds as the lane's number, then a sum over the warp.
    let text = "
    and.b32 %r10, %r1, 31;
    mov.u32 %r11, 0;
LOOP:
    setp.ge.s32 %p1, %r11, %r10;
    @%p1 bra DONE;
    add.s32 %r11, %r11, 1;
    bra LOOP;
DONE:
    shfl.sync.bfly.b32 %r12, %r11, 16, 31, -1; add.s32 %r11, %r11, %r12;
    shfl.sync.bfly.b32 %r12, %r11, 8, 31, -1; add.s32 %r11, %r11, %r12;
    shfl.sync.bfly.b32 %r12, %r11, 4, 31, -1; add.s32 %r11, %r11, %r12;
    shfl.sync.bfly.b32 %r12, %r11, 2, 31, -1; add.s32 %r11, %r11, %r12;
    shfl.sync.bfly.b32 %r12, %r11, 1, 31, -1; add.s32 %r11, %r11, %r12;
    st.global.u32 [%rd5], %r11;";
    for seed in 0..10 {
        let mut attempt = Try::new(text);
        attempt.run_with(Order::Random, seed).unwrap();
        for i in 0..64 {
            assert_eq!(
                attempt.memory.read(0x10_0000_0000 + 8192 + 4 * i, 4).unwrap(),
                496u32.to_le_bytes()
            );
        }
    }
}
