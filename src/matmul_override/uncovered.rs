//! Products of cuBLAS that are not taken over, counted on their way: without them, a program that calls nothing else would seem
//! to multiply nothing.
//!
//! Each of these functions is a few instructions that put the registers which carry arguments aside, ask [`counted`] where to
//! go, and jump there with everything as it was. So they serve any arguments, and what cuBLAS returns goes straight to the
//! caller.

use super::call::PassedOn;
use super::counts::{Left, Outcome};
use super::real::{is_in_cublas, Real, Status, NOT_INITIALIZED};
use super::{is_enabled, record};
use std::arch::naked_asm;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Counts a call, unless cuBLAS makes it itself in the course of another, and says where the real function is.
extern "C" fn counted(real: &'static Real, caller: usize) -> usize {
    // A panic must not reach the instructions that called this.
    let address = catch_unwind(AssertUnwindSafe(|| {
        if is_enabled() && !is_in_cublas(caller) {
            let reason = PassedOn::Function(real.name());
            record(&real.name(), Outcome::Left(Left::PassedOn(reason)));
        }
        real.address()
    }));
    address.ok().flatten().unwrap_or(missing as *const () as usize)
}

/// In place of a function that this process lacks.
extern "C" fn missing() -> Status {
    NOT_INITIALIZED
}

/// The instructions: room for the registers that carry arguments, [`counted`] with the static `real` and the address that the
/// caller goes on at, and on to the address that it returns.
#[cfg(target_arch = "x86_64")]
macro_rules! count_and_go_on {
    ($real:path) => {
        naked_asm!(
            "push rbp",
            "mov rbp, rsp",
            "sub rsp, 176",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            "movups [rsp + 48], xmm0",
            "movups [rsp + 64], xmm1",
            "movups [rsp + 80], xmm2",
            "movups [rsp + 96], xmm3",
            "movups [rsp + 112], xmm4",
            "movups [rsp + 128], xmm5",
            "movups [rsp + 144], xmm6",
            "movups [rsp + 160], xmm7",
            "mov rdi, qword ptr [rip + {real}@GOTPCREL]",
            "mov rsi, [rbp + 8]",
            "call {counted}",
            "mov r11, rax",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "mov rcx, [rsp + 24]",
            "mov r8, [rsp + 32]",
            "mov r9, [rsp + 40]",
            "movups xmm0, [rsp + 48]",
            "movups xmm1, [rsp + 64]",
            "movups xmm2, [rsp + 80]",
            "movups xmm3, [rsp + 96]",
            "movups xmm4, [rsp + 112]",
            "movups xmm5, [rsp + 128]",
            "movups xmm6, [rsp + 144]",
            "movups xmm7, [rsp + 160]",
            "leave",
            "jmp r11",
            real = sym $real,
            counted = sym counted,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! count_and_go_on {
    ($real:path) => {
        naked_asm!(
            "stp x29, x30, [sp, #-208]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "stp q0, q1, [sp, #80]",
            "stp q2, q3, [sp, #112]",
            "stp q4, q5, [sp, #144]",
            "stp q6, q7, [sp, #176]",
            "adrp x0, :got:{real}",
            "ldr x0, [x0, :got_lo12:{real}]",
            "mov x1, x30",
            "bl {counted}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldp q0, q1, [sp, #80]",
            "ldp q2, q3, [sp, #112]",
            "ldp q4, q5, [sp, #144]",
            "ldp q6, q7, [sp, #176]",
            "ldp x29, x30, [sp], #208",
            "br x16",
            real = sym $real,
            counted = sym counted,
        )
    };
}

/// Defines functions of cuBLAS that count and go on.
macro_rules! uncovered {
    ($($name:ident = $symbol:literal;)*) => {$(
        #[allow(non_snake_case)]
        mod $name {
            pub(super) static REAL: super::Real = super::Real::new($symbol);
        }

        /// In place of cuBLAS's function of this name, whose calls are counted.
        ///
        /// # Safety
        ///
        /// As cuBLAS has it, arguments and result too.
        #[no_mangle]
        #[allow(non_snake_case)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            count_and_go_on!($name::REAL)
        }
    )*};
}

uncovered! {
    cublasGemmEx_64 = c"cublasGemmEx_64";
    cublasGemmBatchedEx = c"cublasGemmBatchedEx";
    cublasGemmBatchedEx_64 = c"cublasGemmBatchedEx_64";
    cublasGemmGroupedBatchedEx = c"cublasGemmGroupedBatchedEx";
    cublasGemmGroupedBatchedEx_64 = c"cublasGemmGroupedBatchedEx_64";
    cublasGemmStridedBatchedEx_64 = c"cublasGemmStridedBatchedEx_64";
    cublasLtMatmul = c"cublasLtMatmul";
    cublasSgemm = c"cublasSgemm";
    cublasSgemm_v2_64 = c"cublasSgemm_v2_64";
    cublasSgemmBatched = c"cublasSgemmBatched";
    cublasSgemmBatched_64 = c"cublasSgemmBatched_64";
    cublasSgemmEx = c"cublasSgemmEx";
    cublasSgemmEx_64 = c"cublasSgemmEx_64";
    cublasSgemmGroupedBatched = c"cublasSgemmGroupedBatched";
    cublasSgemmGroupedBatched_64 = c"cublasSgemmGroupedBatched_64";
    cublasSgemmStridedBatched_64 = c"cublasSgemmStridedBatched_64";
    cublasXtSgemm = c"cublasXtSgemm";
}

#[cfg(all(test, not(feature = "cuda")))] // with it, the real cuBLAS is in the process, and goes before any other
mod tests {
    use super::super::{disable, enable, reset_stats, stats, tests::alone};
    use super::*;
    use std::ffi::CString;
    use std::path::Path;
    use std::process::Command;

    /// A cuBLAS that mixes its arguments, so that each has to arrive in its place, and that multiplies by way of another function
    /// which it is handed.
    const SOURCE: &str = "
        typedef unsigned long u64;
        u64 cublasSgemmEx(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, u64 g, u64 h, u64 i, u64 j, float x, double y) {
            u64 all[] = {a, b, c, d, e, f, g, h, i, j, (u64)(x * 8), (u64)(y * 8)}, mixed = 0;
            for (int n = 0; n < 12; n++) mixed = mixed * 31 + all[n];
            return mixed;
        }
        unsigned cublasLtMatmul(unsigned status) { return status; }
        unsigned cublasGemmBatchedEx(unsigned (*by_way_of)(unsigned)) { return by_way_of(7) + 1; }
    ";

    /// Compiles `source` and loads it where nothing else sees it. It stays loaded.
    fn load_locally(source: &str, file: &str, folder: &Path) {
        let (code, library) = (folder.join("code.c"), folder.join(file));
        std::fs::write(&code, source).unwrap();
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &code])
            .status()
            .expect("a C compiler is there, for rustc links with it");
        assert!(compiled.success());
        let path = CString::new(library.to_str().unwrap()).unwrap();
        // SAFETY: the library has no code that runs when it is loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{}", library.display());
    }

    type Mix = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, f32, f64) -> u64;
    type Pass = unsafe extern "C" fn(Status) -> Status;
    type ByWayOf = unsafe extern "C" fn(Pass) -> Status;

    #[test]
    fn calls_are_counted_and_arrive_as_they_were_at_a_library_of_any_version() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        load_locally(SOURCE, "libcublas.so.11.99", folder.path());
        reset_stats();
        // SAFETY: the functions of the library above have these signatures.
        let (mix, pass, by_way_of) = unsafe {
            (
                std::mem::transmute::<unsafe extern "C" fn(), Mix>(cublasSgemmEx),
                std::mem::transmute::<unsafe extern "C" fn(), Pass>(cublasLtMatmul),
                std::mem::transmute::<unsafe extern "C" fn(), ByWayOf>(cublasGemmBatchedEx),
            )
        };
        let arguments = [3u64, u64::MAX, 5, 1 << 63, 7, 11, 13, 17, u64::MAX - 1, 23];
        let expected = arguments
            .iter()
            .chain(&[20, 30])
            .fold(0u64, |mixed, &argument| mixed.wrapping_mul(31).wrapping_add(argument));
        let [a, b, c, d, e, f, g, h, i, j] = arguments;
        // SAFETY: as above.
        let call = || unsafe { mix(a, b, c, d, e, f, g, h, i, j, 2.5, 3.75) };
        assert_eq!(call(), expected, "before the override is on");
        assert_eq!(stats().calls(), 0);
        enable();
        for _ in 0..3 {
            assert_eq!(call(), expected);
        }
        // SAFETY: as above.
        unsafe {
            assert_eq!(pass(42), 42);
            // What cuBLAS calls itself is no call of the program.
            assert_eq!(by_way_of(pass), 8);
        }
        // SAFETY: the function is not there, so nothing is called.
        let lacking = unsafe { std::mem::transmute::<unsafe extern "C" fn(), Pass>(cublasXtSgemm)(0) };
        disable();
        assert_eq!(lacking, NOT_INITIALIZED);
        let stats = stats();
        for (name, calls) in [
            ("cublasSgemmEx", 3),
            ("cublasLtMatmul", 1),
            ("cublasGemmBatchedEx", 1),
            ("cublasXtSgemm", 1),
        ] {
            assert_eq!(stats.passed_on[&PassedOn::Function(name)], calls, "{stats}");
        }
        assert_eq!((stats.taken, stats.calls()), (0, 6), "{stats}");
        assert!(
            stats.to_string().contains("cublasLtMatmul, which is not taken over"),
            "{stats}"
        );
        reset_stats();
    }
}
