//! How fast instructions are carried out on one processor, all checks on: multiply-adds of numbers out of shared memory, and
//! tensor instructions with nothing beside them.
//!
//! `cargo run --release -p ptx-emulator --example speed`

use ptx_emulator::{run, Launch, Memory, Module, Order, Schedule};
use std::time::Instant;

const ROUNDS: u32 = 2000;

/// A kernel that writes 16 KiB of ones to shared memory and then repeats `body`.
fn kernel(body: &str) -> Module {
    let text = format!(
        ".version 8.0\n.target sm_90a\n.address_size 64
.visible .entry k()
{{
    .reg .pred %p<4>; .reg .b32 %r<20>; .reg .f32 %f<100>; .reg .b64 %rd<8>;
    .shared .align 1024 .b8 ones[16384];
    mov.u32 %r1, %tid.x;
    shl.b32 %r2, %r1, 4;
    mov.u32 %r3, ones;
    add.s32 %r4, %r3, %r2;
    mov.u32 %r5, 0x3f800000;
    mov.u32 %r6, 0;
FILL:
    st.shared.v4.u32 [%r4], {{%r5, %r5, %r5, %r5}};
    add.s32 %r4, %r4, 2048;
    add.s32 %r6, %r6, 1;
    setp.lt.u32 %p1, %r6, 8;
    @%p1 bra FILL;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    {zeros}
    add.s32 %r4, %r3, %r2;
    cvt.u64.u32 %rd1, %r3;
    shr.u64 %rd2, %rd1, 4;
    or.b64 %rd3, %rd2, 68720001024;
    mov.u32 %r6, 0;
    wgmma.fence.sync.aligned;
AGAIN:
    {body}
    add.s32 %r6, %r6, 1;
    setp.lt.u32 %p1, %r6, {ROUNDS};
    @%p1 bra AGAIN;
    ret;
}}",
        zeros = (0..100)
            .map(|i| format!("mov.f32 %f{i}, 0f00000000;\n"))
            .collect::<String>()
    );
    Module::parse(&text).unwrap_or_else(|error| panic!("{error}"))
}

/// Seconds that this thread has had a processor, where the system says it; else seconds of the clock.
fn busy_seconds(started: Instant) -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    nanoseconds.map_or(started.elapsed().as_secs_f64(), |nanoseconds| nanoseconds * 1e-9)
}

/// Millions of thread instructions and of tensor multiply-adds a second.
fn rates(body: &str) -> [f64; 2] {
    let module = kernel(body);
    let schedule = Schedule {
        order: Order::Random,
        seed: 1,
    };
    let started = Instant::now();
    let mut best = [0.0f64; 2];
    for _ in 0..5 {
        let before = busy_seconds(started);
        let report =
            run(&module, &Launch::new("k", 1, 128), &mut Memory::new(), schedule).expect("a kernel that is right");
        let seconds = busy_seconds(started) - before;
        for (best, many) in best
            .iter_mut()
            .zip([report.thread_instructions, report.tensor_multiply_adds])
        {
            *best = best.max(many as f64 * 1e-6 / seconds);
        }
    }
    best
}

fn main() {
    let mut ffma = String::from(
        "ld.shared.v4.f32 {%f64, %f65, %f66, %f67}, [%r4];\nld.shared.v4.f32 {%f68, %f69, %f70, %f71}, [%r3];\n",
    );
    for i in 0..16 {
        ffma += &format!("fma.rn.f32 %f{i}, %f{}, %f{}, %f{i};\n", 64 + i / 4, 68 + i % 4);
    }
    let registers: Vec<String> = (0..64).map(|i| format!("%f{i}")).collect();
    let wgmma = |instruction: &str, transposed: &str| {
        format!(
            "wgmma.mma_async.sync.aligned.{instruction} {{{}}}, %rd3, %rd3, 1, 1, 1{transposed};
            wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\nwgmma.fence.sync.aligned;",
            registers.join(", ")
        )
    };
    let mma =
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0, %f1, %f2, %f3}, {%r5, %r5, %r5, %r5}, {%r5, %r5}, \
               {%f0, %f1, %f2, %f3};";
    println!("FFMA: {:.0} million thread instructions a second", rates(&ffma)[0]);
    for (what, instruction, transposed) in [
        ("TF32", "m64n128k8.f32.tf32.tf32", ""),
        ("16 bits", "m64n128k16.f32.bf16.bf16", ", 0, 0"),
        ("16 bits, transposed", "m64n128k16.f32.bf16.bf16", ", 1, 1"),
    ] {
        let rate = rates(&wgmma(instruction, transposed))[1];
        println!("wgmma, {what}: {rate:.0} million multiply-adds a second");
    }
    println!("mma.sync: {:.0} million multiply-adds a second", rates(mma)[1]);
}
