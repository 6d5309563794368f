//! A warp's multiply-add, and the loads and stores of its matrices.

use super::addresses::{Place, WINDOW};
use crate::alu::Narrow;
use crate::finding::{at_lane, Check, Fault, Kind};
use crate::ir::*;
use crate::machine::{Machine, Warp};
use crate::tensor::{Number, Rows};

impl Machine<'_> {
    pub(super) fn mma(&mut self, w: &mut Warp, mma: &Mma) {
        let words =
            |registers: &[u32], w: &Warp| -> Vec<Narrow> { registers.iter().map(|&r| w.narrow[r as usize]).collect() };
        let mut a = [[Number::default(); 16]; 16];
        fragments(&words(&mma.a, w), mma.ty, mma.k, &mut a);
        let mut b = [[Number::default(); 16]; 8];
        let b_words = words(&mma.b, w);
        let per_word = if mma.ty == Ty::Tf32 { 1 } else { 2 };
        for (i, word) in b_words.iter().enumerate() {
            for (lane, &bits) in word.iter().enumerate() {
                for part in 0..per_word {
                    let k = i * 4 * per_word + lane % 4 * per_word + part;
                    b[lane / 4][k] = Number::of(bits >> (16 * part), mma.ty);
                }
            }
        }
        let rows = Rows::new(a, mma.k as usize, per_word == 1, self.arithmetic);
        let mut sums = std::array::from_fn(|i| self.narrow(w, mma.c[i]));
        rows.multiply(&b, &mut sums);
        for (&d, sums) in mma.d.iter().zip(&sums) {
            self.put(w, d, sums, u32::MAX);
        }
        self.report.tensor_multiply_adds += 16 * 8 * u64::from(mma.k);
    }

    /// `ldmatrix` and `stmatrix`: 8 × 8 matrices of 16-bit elements, whose rows lie where lanes say.
    pub(super) fn matrix(&mut self, w: &mut Warp, op: &Op) -> Check<()> {
        let (many, at, trans, store) = match op {
            Op::LdMatrix { d, at, trans } => (d.len(), at, *trans, None),
            Op::StMatrix { s, at, trans } => (s.len(), at, *trans, Some(s)),
            _ => return Ok(()),
        };
        let addresses = self.addresses(w, at);
        let place = |row: usize, matrix: usize| matrix * 8 + row;
        let mut out = vec![[0u32; 32]; many];
        for matrix in 0..many {
            let values = store.map(|s| self.narrow(w, s[matrix]));
            for row in 0..8 {
                let lane = place(row, matrix);
                let result = (|| -> Check<()> {
                    let (slot, offset) = match self.place(w, Space::Shared, addresses[lane] & (WINDOW - 1))? {
                        Place::Shared(slot, offset) => (slot, offset),
                        _ => return Ok(()),
                    };
                    self.shared_bounds(offset, 16, 16)?;
                    self.not_a_barrier(slot, offset, 16)?;
                    let access = self.ordinary(w, lane as u32, store.is_some(), false);
                    if !self.shared_access(w, lane as u32, (slot, offset), 16, store.is_some(), access)? {
                        return Err(Fault::new(Kind::Uninitialised, "a matrix of memory that nothing wrote"));
                    }
                    let data = &mut self.block_mut(slot).data[offset as usize..][..16];
                    for column in 0..8 {
                        let (r, c) = if trans { (column, row) } else { (row, column) };
                        let (thread, half) = (r * 4 + c / 2, c % 2);
                        match &values {
                            Some(values) => {
                                let bits = (values[thread] >> (16 * half)) as u16;
                                data[2 * column..2 * column + 2].copy_from_slice(&bits.to_le_bytes());
                            }
                            None => {
                                let bits = u16::from_le_bytes([data[2 * column], data[2 * column + 1]]);
                                out[matrix][thread] |= u32::from(bits) << (16 * half);
                            }
                        }
                    }
                    Ok(())
                })();
                at_lane(result, lane as u32)?;
            }
        }
        if let Op::LdMatrix { d, .. } = op {
            for (&d, value) in d.iter().zip(&out) {
                self.put(w, d, value, u32::MAX);
            }
        }
        Ok(())
    }
}

/// Operand A of `mma` and `wgmma` out of registers: rows of numbers.
pub(super) fn fragments(words: &[Narrow], ty: Ty, depth: u32, a: &mut [[Number; 16]; 16]) {
    let per_word = if ty == Ty::Tf32 { 1 } else { 2 };
    debug_assert!(words.len() * 64 / 16 * per_word >= depth as usize / 2);
    for (i, word) in words.iter().enumerate() {
        for (lane, &bits) in word.iter().enumerate() {
            for part in 0..per_word {
                let row = lane / 4 + i % 2 * 8;
                let k = i / 2 * 4 * per_word + lane % 4 * per_word + part;
                a[row][k] = Number::of(bits >> (16 * part), ty);
            }
        }
    }
}
