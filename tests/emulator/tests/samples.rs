//! The emulator's TF32 arithmetic against a GPU's, bit by bit, on the samples that `samples/generate.cu` made there.

use ptx_emulator::{tf32_dot, Arithmetic, Random};
use std::fs;
use std::path::Path;

const DEPTH: usize = 8;
const COLUMNS: usize = 8;

#[derive(Clone, Copy, PartialEq)]
enum Role {
    A,
    B,
    C,
}

/// The bits of an operand of this class; `samples/generate.cu` has the same.
fn number(class: u64, role: Role, r: u64) -> u32 {
    let (sign, fraction, high) = ((r as u32 & 1) << 31, (r >> 8) as u32 & 0x7F_FFFF, r >> 32);
    let with = |exponent: u64, bits: u32| sign | (exponent as u32) << 23 | bits;
    let addend = role == Role::C;
    let pick = |c: u64, ab: u64| if addend { c } else { ab };
    match class {
        0 => with(126 - high % 4, fraction),
        1 => with(97 + high % 61, fraction),
        2 => with(1 + high % 253, fraction),
        3 => with(120 + high % 8, fraction),
        4 => with(if high % 2 == 0 { 0 } else { 127 }, fraction),
        5 => with(pick(high % 30, 52 + high % 14), fraction),
        6 => with(pick(147 + high % 6, 120 + high % 8), fraction),
        7 => with(pick(100 + high % 10, 125 + high % 6), fraction),
        8 if (r >> 40).is_multiple_of(16) => {
            sign | if (r >> 50).is_multiple_of(2) {
                0x7F80_0000
            } else {
                0x7FC0_0000
            }
        }
        8 => with(126 - high % 4, fraction),
        9 => with(pick(252 + high % 3, 189 + high % 3), fraction),
        10 => with(pick(127, 113 + high % 15), 0),
        11 if (r >> 40).is_multiple_of(3) => sign,
        11 => with(1 + high % 253, fraction),
        12 | 13 => {
            let scale = if class == 13 && addend { 4_194_304.0 } else { 1.0 };
            (((high % 17) as f32 - 8.0) * scale).to_bits()
        }
        14 => number((r >> 56) % 11, role, r),
        _ => high as u32,
    }
}

struct Operands {
    a: Vec<u32>,
    b: Vec<u32>,
    c: Vec<u32>,
}

impl Operands {
    fn new(instruction: u64, class: u64, rows: usize) -> Self {
        let mut random = Random(instruction * 1000 + class);
        let mut draw =
            |many: usize, role: Role| -> Vec<u32> { (0..many).map(|_| number(class, role, random.next())).collect() };
        let mut operands = Operands {
            a: draw(rows * DEPTH, Role::A),
            b: draw(DEPTH * COLUMNS, Role::B),
            c: draw(rows * COLUMNS, Role::C),
        };
        if class == 3 {
            for i in (1..rows * DEPTH).step_by(2) {
                operands.a[i] = operands.a[i - 1] ^ 0x8000_0000;
            }
            for k in (1..DEPTH).step_by(2) {
                for column in 0..COLUMNS {
                    let flip = if random.next().is_multiple_of(4) { 1 << 13 } else { 0 };
                    operands.b[k * COLUMNS + column] = operands.b[(k - 1) * COLUMNS + column] ^ flip;
                }
            }
            for x in &mut operands.c {
                if random.next().is_multiple_of(2) {
                    *x = 0;
                }
            }
        }
        operands
    }

    fn checksum(&self) -> u64 {
        let all = self.a.iter().chain(&self.b).chain(&self.c);
        all.fold(0xCBF2_9CE4_8422_2325, |sum: u64, &x| {
            (sum ^ u64::from(x)).wrapping_mul(0x100_0000_01B3)
        })
    }
}

/// The lines of a file whose results differ, with the first difference of each.
fn compare(text: &str, arithmetic: Arithmetic) -> (usize, Vec<String>) {
    let (mut compared, mut wrong) = (0, Vec::new());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (name, class) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
        let checksum = u64::from_str_radix(words.next().unwrap(), 16).unwrap();
        let results: Vec<u32> = words.map(|word| u32::from_str_radix(word, 16).unwrap()).collect();
        let (instruction, rows) = if name == "mma" { (0, 16) } else { (1, 64) };
        let operands = Operands::new(instruction, class, rows);
        assert_eq!(
            operands.checksum(),
            checksum,
            "{name} {class}: other operands than the GPU had"
        );
        assert_eq!(results.len(), rows * COLUMNS, "{name} {class}: a line is cut off");
        let float = |bits: &u32| f32::from_bits(*bits);
        let mut differing = 0;
        for (i, &expected) in results.iter().enumerate() {
            let (row, column) = (i / COLUMNS, i % COLUMNS);
            let a: Vec<f32> = operands.a[row * DEPTH..(row + 1) * DEPTH].iter().map(float).collect();
            let b: Vec<f32> = operands.b.iter().skip(column).step_by(COLUMNS).map(float).collect();
            let got = tf32_dot(&a, &b, float(&operands.c[i]), arithmetic).to_bits();
            compared += 1;
            if got != expected {
                differing += 1;
                if differing == 1 {
                    let c = float(&operands.c[i]);
                    wrong.push(format!(
                        "{name}, class {class}, ({row}, {column}): {got:#010x}, the GPU has {expected:#010x}: {a:?} · {b:?} + {c:?}"
                    ));
                }
            }
        }
        if differing > 1 {
            wrong.push(format!(
                "{name}, class {class}: {differing} of {} differ",
                results.len()
            ));
        }
    }
    (compared, wrong)
}

#[test]
fn tf32_products_have_the_bits_that_hopper_gives() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples");
    let mut files = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        files += 1;
        let (compared, wrong) = compare(&fs::read_to_string(&path).unwrap(), Arithmetic::HOPPER);
        assert!(compared >= 1000, "{}: only {compared} samples", path.display());
        assert!(wrong.is_empty(), "{}:\n{}", path.display(), wrong.join("\n"));
        println!("{}: {compared} samples agree", path.display());
    }
    if files == 0 {
        eprintln!("skipped: no samples of a GPU (samples/generate.cu makes them)");
    }
}

/// The generator here and the one in CUDA are the same: checksums that `generate --inputs` printed.
#[test]
fn operands_are_those_of_the_cuda_program() {
    let expected: [(u64, u64, u64); 32] = [
        (0, 0, 0xE82A_ADCE_0CE9_7CF6),
        (0, 1, 0x25DF_7CDE_7F61_E0B7),
        (0, 2, 0x8ECE_0CD9_CC05_A78B),
        (0, 3, 0x6701_A9CA_7C3D_0191),
        (0, 4, 0x2418_334C_61E3_6B91),
        (0, 5, 0xDA47_A984_7D67_5406),
        (0, 6, 0x9794_068E_5653_1975),
        (0, 7, 0xEE72_19B8_F493_6833),
        (0, 8, 0xCA5C_6280_5FE0_E6A1),
        (0, 9, 0x4533_A45F_4F67_D852),
        (0, 10, 0xAF4D_ADD7_E55A_9C25),
        (0, 11, 0xB289_9E23_5DFB_5B77),
        (0, 12, 0x24B1_4589_82FA_9C25),
        (0, 13, 0x6C18_8E4F_E8FA_9C25),
        (0, 14, 0xF406_3474_D748_C234),
        (0, 15, 0x1BFF_0FC0_554C_A4B0),
        (1, 0, 0x8FEA_76DD_9C2B_E147),
        (1, 1, 0x5FF3_8049_0A4E_E885),
        (1, 2, 0x343E_7EA8_B974_A20F),
        (1, 3, 0x0FE6_EFBC_74BB_005F),
        (1, 4, 0x24BA_A0B1_0F94_E0F2),
        (1, 5, 0x6A06_5FD8_28E8_93E7),
        (1, 6, 0x5D57_7D56_7714_2EF6),
        (1, 7, 0xFC5A_916E_226A_DF64),
        (1, 8, 0xA55F_419B_1851_555A),
        (1, 9, 0x1FBB_C9AD_9B31_2D3E),
        (1, 10, 0x7762_F314_8ED3_5825),
        (1, 11, 0x6654_87E5_2097_ED8A),
        (1, 12, 0x7AD2_2F32_67B3_5825),
        (1, 13, 0x08AF_EF14_5F13_5825),
        (1, 14, 0xFFB7_2ADD_208D_0CB7),
        (1, 15, 0xE84F_BB5B_2B21_F592),
    ];
    for (instruction, class, checksum) in expected {
        let rows = if instruction == 0 { 16 } else { 64 };
        assert_eq!(
            Operands::new(instruction, class, rows).checksum(),
            checksum,
            "{instruction} {class}"
        );
    }
}
