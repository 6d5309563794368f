//! Operands that are repacked before a product: every size from 1 to 9 on both sides, beside a long one, in every order,
//! with every row stride and base address that keeps 4, 8 or 16 bytes. What the plan would launch is carried out here, on the
//! CPU and as the kernels' sources say; what the product then reads must be the operand, element by element, and nothing
//! beside it may have been written.

use candle_sgemm::device::DeviceInfo;
use candle_sgemm::gemm::operands::MAX_BATCH_DIMS;
use candle_sgemm::gemm::planner::prepare::{self, Repack};
use candle_sgemm::gemm::{Access, DType, ElementTypes, GemmProblem, KernelSpec, OperandLayout, TABLE};
use candle_sgemm::transpose::args::TransposeArgs;
use candle_sgemm::transpose::kernels::Tiling;
use candle_sgemm::transpose::{cpu, Axis, Step, TransposePlan, TransposeProblem};

/// Sides of an operand: the small ones, and one that is longer than a vector, a sector and a row of a tile.
const SIDES: [usize; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 37];

/// Elements by which a line may be longer than what is read of it: with them every stride modulo 16 bytes occurs.
const PADDING: std::ops::Range<usize> = 0..4;

const DEVICES: [DeviceInfo; 4] = [
    DeviceInfo::H100,
    DeviceInfo::A100,
    DeviceInfo::RTX_4090,
    DeviceInfo::RTX_5090,
];

/// What stands in the destination where nothing was written: no element of a source has this number.
const UNTOUCHED: u32 = u32::MAX;

/// How the operand under test lies.
#[derive(Clone, Copy, Debug)]
struct Lie {
    /// Its rows and columns.
    size: [usize; 2],
    /// Whether neighbours of a column are adjacent, rather than those of a row.
    columns: bool,
    /// Elements between neighbours of a line: more than 1 leaves gaps.
    step: usize,
    /// Elements between a line's end and the next line.
    padding: usize,
    /// Bytes that the first element's address is a multiple of.
    align: u32,
    /// Extents of the batch, and elements between the end of a matrix and the next one. No batch: 1.
    batch: [usize; 2],
    batch_padding: usize,
    /// Whether the batch lies between the elements of a line, as heads of attention do, rather than around the matrices.
    batch_inside: bool,
    dtype: DType,
}

impl Lie {
    fn layout(&self) -> OperandLayout {
        let [rows, cols] = self.size;
        let (inner, outer) = if self.columns { (rows, cols) } else { (cols, rows) };
        let [slow, fast] = self.batch;
        let (element, line, batch) = if self.batch_inside {
            // Elements of a line are as far apart as the batch takes.
            let element = (slow * fast + self.batch_padding) * self.step;
            (element, element * inner + self.padding, [fast, 1])
        } else {
            let line = self.step * inner + self.padding;
            let matrix = line * outer + self.batch_padding;
            (self.step, line, [matrix * fast, matrix])
        };
        let (element, line) = (element as i64, line as i64);
        let mut strides = [0; MAX_BATCH_DIMS];
        for (dim, stride) in batch.into_iter().enumerate() {
            if self.batch[dim] > 1 {
                strides[MAX_BATCH_DIMS - 2 + dim] = stride as i64;
            }
        }
        let layout = match self.columns {
            true => OperandLayout::strided(element, line),
            false => OperandLayout::strided(line, element),
        };
        layout.with_batch_strides(strides).with_align(self.align)
    }

    fn batch_dims(&self) -> [usize; MAX_BATCH_DIMS] {
        let mut dims = [1; MAX_BATCH_DIMS];
        dims[MAX_BATCH_DIMS - 2..].copy_from_slice(&self.batch);
        dims
    }

    /// A product whose A, or whose B, lies like this, and whose other operand every kernel takes in place.
    fn problem(&self, is_b: bool) -> GemmProblem {
        let [rows, cols] = self.size;
        const OTHER: usize = 16;
        let mut problem = match is_b {
            false => GemmProblem::new(rows, OTHER, cols, self.layout(), OperandLayout::row_major(OTHER)),
            true => GemmProblem::new(OTHER, cols, rows, OperandLayout::col_major(OTHER), self.layout()),
        };
        problem.types = ElementTypes::all_of(self.dtype);
        problem.batch_dims = self.batch_dims();
        problem
    }
}

/// Offset of every element of the batch of operands, batch after batch and row after row.
fn places(layout: &OperandLayout, batch_dims: &[usize; MAX_BATCH_DIMS], [rows, cols]: [usize; 2]) -> Vec<usize> {
    let mut places = Vec::new();
    for batch in 0..batch_dims.iter().product() {
        let mut rest: usize = batch;
        let mut base = 0;
        for dim in (0..MAX_BATCH_DIMS).rev() {
            base += (rest % batch_dims[dim]) as i64 * layout.batch_strides[dim];
            rest /= batch_dims[dim];
        }
        for row in 0..rows as i64 {
            for col in 0..cols as i64 {
                places.push((base + row * layout.row_stride + col * layout.col_stride) as usize);
            }
        }
    }
    places
}

/// Memory counted in elements of the operand, moved in wider ones.
struct Memory<'a> {
    src: &'a [u32],
    dst: Vec<u32>,
    /// Elements of the operand in one that is moved.
    width: usize,
}

impl Memory<'_> {
    fn move_element(&mut self, src: i64, dst: i64) {
        let (src, dst) = (src as usize * self.width, dst as usize * self.width);
        self.dst[dst..dst + self.width].copy_from_slice(&self.src[src..src + self.width]);
    }
}

/// Moves every element as the definition of a problem says.
fn by_definition(problem: &TransposeProblem, memory: &mut Memory) {
    for number in 0..problem.elements() {
        let (mut rest, mut src, mut dst) = (number, 0, 0);
        for axis in problem.axes.iter().rev() {
            let index = (rest % axis.extent) as i64;
            rest /= axis.extent;
            src += index * axis.src;
            dst += index * axis.dst;
        }
        memory.move_element(src, dst);
    }
}

/// Moves every element of a launch as the kernel does that gets these arguments.
fn by_kernel(args: &TransposeArgs, tiling: Tiling, element_size: usize, memory: &mut Memory) {
    let outer = &args.outer[..args.outer_dims as usize];
    let [src, dst] = [args.src, args.dst].map(|address| (address / element_size as u64) as i64);
    let (rows, cols) = (args.rows, args.cols);
    let matrix_elements = rows * cols;
    for number in 0..matrix_elements * i64::from(args.outer_count) {
        let (row, col) = (number % matrix_elements / cols, number % cols);
        let mut rest = number / matrix_elements;
        let (mut from, mut to) = (0, 0);
        for dim in outer {
            let extent = i64::from(dim.extent.value());
            from += rest % extent * dim.src_stride;
            to += rest % extent * dim.dst_stride;
            rest /= extent;
        }
        from += row * args.src_row_stride + col * args.src_col_stride;
        to += match tiling {
            // These write rows without gaps between their elements, whatever the stride of the columns: see copy_03_rows.cu.
            Tiling::Runs { .. } if args.gaps != 0 => row * args.dst_row_stride + col,
            Tiling::Runs { .. } => number - to,
            Tiling::Tiles | Tiling::Shifted | Tiling::FewRows | Tiling::FewCols => {
                row * args.dst_row_stride + col * args.dst_col_stride
            }
        };
        memory.move_element(src + from, dst + to);
    }
}

fn by_plan(plan: &TransposePlan, memory: &mut Memory) {
    let size = plan.problem.element_size;
    match &plan.step {
        Step::Nothing => {}
        Step::Copy { bytes } => (0..(bytes / size) as i64).for_each(|i| memory.move_element(i, i)),
        Step::Launch { kernel, pieces, .. } => {
            for piece in pieces {
                by_kernel(&piece.args(plan, kernel, 0, 0), kernel.tiling, size, memory);
            }
        }
    }
}

/// The same movement into a destination without gaps, which is what the CPU's transposition writes.
fn without_gaps(problem: &TransposeProblem) -> TransposeProblem {
    let mut dense = problem.clone();
    let mut dst = 1;
    for axis in dense.axes.iter_mut().rev() {
        *axis = Axis { dst, ..*axis };
        dst *= axis.extent as i64;
    }
    dense
}

/// The first thing that is wrong with what `repack` would have written, or `None`.
fn complaint(repack: &Repack, lie: &Lie) -> Option<String> {
    let (batch_dims, dtype) = (repack.batch_dims, lie.dtype);
    let from = places(&repack.from, &batch_dims, repack.size);
    let to = places(&repack.to, &batch_dims, repack.size);
    let reach = from.iter().max()? + 1;
    let src: Vec<u32> = (0..reach as u32).collect();
    let room = repack.bytes / dtype.size();
    let mut wanted = vec![UNTOUCHED; room];
    for (&from, &to) in from.iter().zip(&to) {
        wanted[to] = src[from];
    }
    let movement = repack.movement();
    let run = |problem: &TransposeProblem, how: &dyn Fn(&mut Memory)| {
        let mut memory = Memory {
            src: &src,
            dst: vec![UNTOUCHED; room],
            width: problem.element_size / dtype.size(),
        };
        how(&mut memory);
        memory.dst
    };
    let differs = |what: &str, dst: &[u32]| {
        let place = (0..room).find(|&place| dst[place] != wanted[place])?;
        let name = |number: u32| match number {
            UNTOUCHED => "nothing".to_string(),
            number => format!("element {number}"),
        };
        let (got, want) = (name(dst[place]), name(wanted[place]));
        Some(format!("{what}: {movement} leaves {got} at place {place}, not {want}"))
    };

    let plain = run(&movement, &|memory| by_definition(&movement, memory));
    let wide = movement.widened();
    if !wide.align.is_multiple_of(wide.element_size) {
        return Some(format!("{wide}, from addresses that are multiples of {}", wide.align));
    }
    let widened = run(&wide, &|memory| by_definition(&wide, memory));
    let found = differs("by definition", &plain).or_else(|| differs("widened", &widened));
    if found.is_some() {
        return found;
    }
    let mut plans: Vec<TransposePlan> = Vec::new();
    for device in &DEVICES {
        match TransposePlan::new(&movement, device) {
            Ok(plan) if plans.contains(&plan) => {}
            Ok(plan) => plans.push(plan),
            Err(error) => return Some(error.to_string()),
        }
    }
    for plan in plans {
        let planned = run(&plan.problem, &|memory| by_plan(&plan, memory));
        let found = differs(&plan.to_string(), &planned);
        if found.is_some() {
            return found;
        }
    }
    let dense = without_gaps(&movement);
    let mut packed = vec![UNTOUCHED; dense.elements()];
    if let Err(error) = cpu::permute(&dense, &src, &mut packed) {
        return Some(error.to_string());
    }
    // The destination in order, without its gaps.
    let in_order = wanted.iter().filter(|&&number| number != UNTOUCHED);
    let place = packed.iter().zip(in_order).position(|(got, want)| got != want)?;
    Some(format!("on the CPU: {dense} leaves the wrong element at place {place}"))
}

/// One kernel for each set of needs: what is repacked depends on nothing else.
fn kinds_of_kernels() -> Vec<&'static KernelSpec> {
    let mut kinds: Vec<&KernelSpec> = Vec::new();
    for spec in TABLE {
        let known = |kind: &&KernelSpec| kind.needs.a == spec.needs.a && kind.needs.b == spec.needs.b;
        if !kinds.iter().any(known) {
            kinds.push(spec);
        }
    }
    kinds
}

/// Every way in which an operand of this size may lie.
fn lies(size: [usize; 2]) -> impl Iterator<Item = Lie> {
    let batches = [
        // extents, elements after a matrix, inside a line
        ([1, 1], 0, false),
        ([1, 2], 0, false),
        ([1, 3], 1, false),
        ([2, 3], 2, false),
        ([2, 2], 0, true),
    ];
    let bools = [false, true];
    batches
        .into_iter()
        .flat_map(move |batch| bools.into_iter().map(move |columns| (batch, columns)))
        .flat_map(|(batch, columns)| [1, 2].into_iter().map(move |step| (batch, columns, step)))
        .flat_map(|(batch, columns, step)| PADDING.map(move |padding| (batch, columns, step, padding)))
        .flat_map(move |((batch, batch_padding, batch_inside), columns, step, padding)| {
            let aligns = [
                (4, DType::F32),
                (8, DType::F32),
                (16, DType::F32),
                (8, DType::F64),
                (16, DType::F64),
                (2, DType::F16),
                (4, DType::BF16),
                (8, DType::F16),
                (16, DType::BF16),
            ];
            aligns.into_iter().map(move |(align, dtype)| Lie {
                size,
                columns,
                step,
                padding,
                align,
                batch,
                batch_padding,
                batch_inside,
                dtype,
            })
        })
}

#[test]
fn what_is_written_anew_is_the_operand() {
    const SHOWN: usize = 12;
    let kinds = kinds_of_kernels();
    let (mut checked, mut wrong, mut as_rows, mut shown) = (0, 0, 0, String::new());
    // Which extents were written as lines of how many bytes of alignment: none may be missing in the end.
    let mut met = std::collections::BTreeSet::new();
    for rows in SIDES {
        for cols in SIDES {
            for lie in lies([rows, cols]) {
                // Gaps within a line, and long sides, show nothing in a batch that they do not show alone.
                let long = rows.max(cols) == SIDES[SIDES.len() - 1];
                if lie.batch != [1, 1] && (lie.step > 1 || long) {
                    continue;
                }
                let mut seen: Vec<Repack> = Vec::new();
                let mut written_wrongly = |repack: &Repack| {
                    checked += 1;
                    if let Some(complaint) = complaint(repack, &lie) {
                        wrong += 1;
                        if wrong <= SHOWN {
                            shown += &format!("{lie:?}\n  as {:?}\n  {complaint}\n", repack.to);
                        }
                    }
                };
                // As rows of one matrix, past one B.
                let mut shared = lie.problem(false);
                let matrix = (shared.m * shared.n) as i64;
                shared.d = shared
                    .d
                    .with_batch_strides([0, 0, matrix * lie.batch[1] as i64, matrix]);
                let shared = shared.folded().unwrap();
                if let Some((changed, [Some(repack), None])) = prepare::offer_rows(&shared, &DeviceInfo::H200) {
                    assert!(changed.m > shared.m && changed.m * changed.batch() == shared.m * shared.batch());
                    as_rows += 1;
                    written_wrongly(&repack);
                }
                for spec in &kinds {
                    for is_b in [false, true] {
                        let Some((changed, repacks)) =
                            prepare::offer(spec, &lie.problem(is_b).folded().unwrap(), &DeviceInfo::H200)
                        else {
                            continue;
                        };
                        let Some(repack) = repacks[usize::from(is_b)] else {
                            continue;
                        };
                        let now = if is_b { changed.b } else { changed.a };
                        let access = now.access(rows, cols, lie.dtype);
                        assert!(
                            matches!(access, Access::RowVector | Access::ColVector),
                            "{lie:?} is written for vectors and then read as {access:?}"
                        );
                        if seen.contains(&repack) {
                            continue;
                        }
                        seen.push(repack);
                        let inner = if now.col_stride == 1 { cols } else { rows };
                        met.insert((inner, lie.align, repack.transposes()));
                        written_wrongly(&repack);
                    }
                }
            }
        }
    }
    for inner in SIDES.into_iter().filter(|&side| side > 1) {
        for align in [4, 8, 16] {
            for transposes in [false, true] {
                assert!(
                    met.contains(&(inner, align, transposes)),
                    "no line of {inner} elements at a multiple of {align} bytes was repacked (transposed: {transposes})"
                );
            }
        }
    }
    assert!(
        wrong == 0,
        "{wrong} of {checked} operands are written wrongly, such as\n{shown}"
    );
    assert!(as_rows > 100, "{as_rows}");
    println!("{checked} operands");
}
