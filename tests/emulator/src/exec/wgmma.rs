//! A warpgroup's multiply-add, and which registers it has while it is under way.

use super::mma::fragments;
use crate::alu::Narrow;
use crate::clock::Epoch;
use crate::finding::{Check, Fault, Kind};
use crate::ir::*;
use crate::machine::{Machine, Warp};
use crate::shadow::Access;
use crate::tensor::{Descriptor, Number, Rows};

impl Machine<'_> {
    pub(super) fn wgmma(&mut self, w: &mut Warp, wgmma: &Wgmma) -> Check<()> {
        let size = wgmma.ty.size();
        let size = if wgmma.ty == Ty::Tf32 { 4 } else { size };
        let depth = 32 / size;
        let scale = Self::pred(w, wgmma.scale_d);
        if scale != 0 && scale & w.live != w.live {
            return Err(Fault::new(
                Kind::Unsupported,
                "scale-d differs between the threads of a warp",
            ));
        }
        let accumulate = scale & w.live != 0;
        let group = w.wgmma_committed + 1;
        let tags_a: &[u32] = match &wgmma.a {
            WgmmaA::Regs(registers) => registers,
            WgmmaA::Desc(_) => &[],
        };
        for &register in wgmma.d.iter().chain(tags_a) {
            if w.stamps[register as usize] > w.fence {
                return Err(Fault::new(
                    Kind::WgmmaRegisters,
                    format!("register number {register} was written after the last wgmma.fence"),
                ));
            }
        }
        for &register in tags_a {
            if w.wgmma_tag[register as usize] != 0 && wgmma.d.contains(&register) {
                return Err(Fault::new(
                    Kind::WgmmaRegisters,
                    format!("register number {register} is both A and D"),
                ));
            }
        }
        let access = Access {
            epoch: Epoch::new(w.block, self.wgmma_component(w.index), group),
            proxy: true,
            strong: false,
            rmw: false,
        };
        let quarter = w.index % 4;
        // A's rows of this warp.
        let mut a = [[Number::default(); 16]; 16];
        match &wgmma.a {
            WgmmaA::Regs(registers) => {
                let words: Vec<Narrow> = registers.iter().map(|&r| w.narrow[r as usize]).collect();
                fragments(&words, wgmma.ty, depth, &mut a);
            }
            WgmmaA::Desc(src) => {
                let descriptor = Descriptor::parse(self.wide(w, *src)[w.live.trailing_zeros() as usize]);
                let first = quarter * a.len() as u32;
                self.tile(
                    w,
                    &descriptor,
                    first,
                    [depth, size],
                    wgmma.transposed[0],
                    wgmma.ty,
                    access,
                    &mut a,
                )?;
            }
        }
        let descriptor = Descriptor::parse(self.wide(w, wgmma.b)[w.live.trailing_zeros() as usize]);
        let mut b = vec![[Number::default(); 16]; wgmma.n as usize];
        self.tile(
            w,
            &descriptor,
            0,
            [depth, size],
            wgmma.transposed[1],
            wgmma.ty,
            access,
            &mut b,
        )?;
        if wgmma.negate[0] != wgmma.negate[1] {
            a.iter_mut().flatten().for_each(Number::negate);
        }
        let depth = depth as usize;
        let rows = Rows::new(a, depth, size == 4, self.arithmetic);
        for (registers, columns) in wgmma.d.chunks_exact(4).zip(b.as_chunks::<8>().0) {
            let mut sums = [[0; 32]; 4];
            if accumulate {
                sums = std::array::from_fn(|i| w.narrow[registers[i] as usize]);
            }
            rows.multiply(columns, &mut sums);
            for (&register, sums) in registers.iter().zip(sums) {
                w.narrow[register as usize] = sums;
            }
        }
        self.report.tensor_multiply_adds += 16 * u64::from(wgmma.n) * depth as u64;
        for &register in wgmma.d.iter().chain(tags_a) {
            if w.wgmma_tag[register as usize] == 0 {
                w.wgmma_tagged.push(register);
            }
            w.wgmma_tag[register as usize] = group;
        }
        w.wgmma_open = true;
        Ok(())
    }

    /// Rows of A or columns of B out of shared memory, from the one numbered `first` on, 16 bytes at a time: so many lie side by side
    /// whatever the swizzle. `depth` and the size of an element in bytes.
    #[allow(clippy::too_many_arguments)]
    fn tile(
        &mut self,
        w: &Warp,
        descriptor: &Descriptor,
        first: u32,
        [depth, size]: [u32; 2],
        mn_major: bool,
        ty: Ty,
        access: Access,
        lines: &mut [[Number; 16]],
    ) -> Check<()> {
        const BYTES: u32 = 16;
        let together = (BYTES / size) as usize;
        let [lines_at_once, depth_at_once] = if mn_major { [together, 1] } else { [1, together] };
        let lane = w.live.trailing_zeros();
        for line in (0..lines.len()).step_by(lines_at_once) {
            for k in (0..depth as usize).step_by(depth_at_once) {
                let at = descriptor.address(first + line as u32, k as u32, size, mn_major);
                self.shared_bounds(at, BYTES, BYTES)?;
                self.proxy_cells(w, lane, w.slot, at, BYTES, false, access)?;
                let data = &self.block_ref(w.slot).data[at as usize..];
                for (i, part) in data.chunks(size as usize).take(together).enumerate() {
                    let bits = match size {
                        4 => u32::from_le_bytes([part[0], part[1], part[2], part[3]]),
                        _ => u16::from_le_bytes([part[0], part[1]]).into(),
                    };
                    let [line, k] = if mn_major { [line + i, k] } else { [line, k + i] };
                    lines[line][k] = Number::of(bits, ty);
                }
            }
        }
        Ok(())
    }

    pub(super) fn wgmma_wait(&mut self, w: &mut Warp, pending: u32) {
        let live = w.live;
        // All lanes have read what they gave to it in registers.
        self.converge(w, live);
        let done = w.wgmma_committed.saturating_sub(pending);
        w.wgmma_done = w.wgmma_done.max(done);
        let tags = &mut w.wgmma_tag;
        w.wgmma_tagged.retain(|&register| {
            let under_way = tags[register as usize] > done;
            if !under_way {
                tags[register as usize] = 0;
            }
            under_way
        });
    }

    /// Registers of a `wgmma` that is under way are not to be touched; copies of them stand for them.
    pub(super) fn check_wgmma_registers(&self, w: &mut Warp, op: &Op) -> Check<()> {
        let busy = |register: u32, tags: &[u32]| -> bool { register != SINK && tags[register as usize] != 0 };
        let complain = |register: u32| {
            Err(Fault::new(
                Kind::WgmmaRegisters,
                format!("register number {register} belongs to a wgmma that is under way"),
            ))
        };
        let source = |src: &Src, tags: &[u32]| match src {
            Src::Reg(register) if busy(*register, tags) => Some(*register),
            _ => None,
        };
        let tags = &w.wgmma_tag;
        match op {
            Op::Alu {
                f: Alu::Mov,
                ty,
                d,
                a: Src::Reg(a),
                ..
            } if !ty.wide() => {
                if busy(*a, tags) {
                    let tag = tags[*a as usize];
                    if !busy(*d, tags) {
                        w.wgmma_tagged.push(*d);
                    }
                    w.wgmma_tag[*d as usize] = tag;
                    return Ok(());
                }
                if busy(*d, tags) {
                    return complain(*d);
                }
            }
            Op::Alu { f, ty, d, a, b, c, .. } if !ty.wide() => {
                for src in [a, b, c] {
                    if let Some(register) = source(src, tags) {
                        return complain(register);
                    }
                }
                if !matches!(f, Alu::MulWide | Alu::MadWide) && busy(*d, tags) {
                    return complain(*d);
                }
            }
            Op::Selp {
                wide: false, d, a, b, ..
            } => {
                for src in [a, b] {
                    if let Some(register) = source(src, tags) {
                        return complain(register);
                    }
                }
                if busy(*d, tags) {
                    return complain(*d);
                }
            }
            Op::Setp { ty, a, b, .. } if !ty.wide() => {
                for src in [a, b] {
                    if let Some(register) = source(src, tags) {
                        return complain(register);
                    }
                }
            }
            Op::St { wide: false, s, .. } => {
                for src in s {
                    if let Some(register) = source(src, tags) {
                        return complain(register);
                    }
                }
            }
            Op::Ld { wide: false, d, .. } => {
                for &d in d {
                    if busy(d, tags) {
                        return complain(d);
                    }
                }
            }
            Op::Shfl { d, a, .. } => {
                if let Some(register) = source(a, tags) {
                    return complain(register);
                }
                if busy(*d, tags) {
                    return complain(*d);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
