//! The compact form into which PTX is parsed: registers have numbers, labels are instruction indices.

/// Types of PTX, as far as instructions need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Ty {
    Pred,
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    BF16,
    F16x2,
    BF16x2,
    Tf32,
    F32,
    F64,
}

impl Ty {
    pub(crate) fn parse(text: &str) -> Option<Ty> {
        Some(match text {
            "pred" => Ty::Pred,
            "b8" => Ty::B8,
            "b16" => Ty::B16,
            "b32" => Ty::B32,
            "b64" => Ty::B64,
            "u8" => Ty::U8,
            "u16" => Ty::U16,
            "u32" => Ty::U32,
            "u64" => Ty::U64,
            "s8" => Ty::S8,
            "s16" => Ty::S16,
            "s32" => Ty::S32,
            "s64" => Ty::S64,
            "f16" => Ty::F16,
            "bf16" => Ty::BF16,
            "f16x2" => Ty::F16x2,
            "bf16x2" => Ty::BF16x2,
            "tf32" => Ty::Tf32,
            "f32" => Ty::F32,
            "f64" => Ty::F64,
            _ => return None,
        })
    }

    /// Bytes of a value.
    pub(crate) const fn size(self) -> u32 {
        match self {
            Ty::Pred | Ty::B8 | Ty::U8 | Ty::S8 => 1,
            Ty::B16 | Ty::U16 | Ty::S16 | Ty::F16 | Ty::BF16 => 2,
            Ty::B64 | Ty::U64 | Ty::S64 | Ty::F64 => 8,
            _ => 4,
        }
    }

    pub(crate) const fn signed(self) -> bool {
        matches!(self, Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64)
    }

    pub(crate) const fn float(self) -> bool {
        matches!(self, Ty::F16 | Ty::BF16 | Ty::F32 | Ty::F64 | Ty::Tf32)
    }

    /// Whether a register of this type is one of 64 bits.
    pub(crate) const fn wide(self) -> bool {
        self.size() == 8
    }
}

/// A register file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Predicates, a bit a lane.
    Pred,
    /// 16 and 32 bits.
    Narrow,
    /// 64 bits.
    Wide,
}

/// Registers that the hardware writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    Clusterid(u8),
    Nclusterid(u8),
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterCtarank,
    ClusterNctarank,
    Laneid,
    Warpid,
    Smid,
    Clock,
    LanemaskLt,
    LanemaskLe,
    LanemaskGt,
    LanemaskGe,
    LanemaskEq,
    DynamicSmem,
}

/// A source of an instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Src {
    /// A register of the file that the instruction's type says.
    Reg(u32),
    /// A number, or the address of a variable.
    Imm(u64),
    /// What the hardware knows.
    Special(Special),
    /// The address of a module variable in global memory, known at the launch.
    Global(u32),
}

/// A predicate as a source: number and whether it is negated, or a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredSrc {
    /// A register.
    Reg(u32, bool),
    /// A constant.
    Const(bool),
}

/// Where no result is wanted (`_`).
pub const SINK: u32 = u32::MAX;

/// State spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Space {
    Generic,
    Global,
    Shared,
    /// Shared memory of any block of the cluster.
    Cluster,
    Local,
    Const,
    Param,
}

/// An address: a register or nothing, and an offset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Addr {
    /// The register or constant.
    pub base: Src,
    /// Whether a base register has 64 bits.
    pub wide: bool,
    /// What is added.
    pub offset: i64,
}

/// How a memory access takes part in synchronisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sem {
    /// Ordinary.
    Weak,
    /// `relaxed`, `volatile`
    Relaxed,
    /// `acquire`
    Acquire,
    /// `release`
    Release,
    /// `acq_rel`
    AcqRel,
}

impl Sem {
    pub(crate) const fn strong(self) -> bool {
        !matches!(self, Sem::Weak)
    }
    pub(crate) const fn acquires(self) -> bool {
        matches!(self, Sem::Acquire | Sem::AcqRel)
    }
    pub(crate) const fn releases(self) -> bool {
        matches!(self, Sem::Release | Sem::AcqRel)
    }
}

/// How far synchronisation reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Scope {
    Cta,
    Cluster,
    Gpu,
    Sys,
}

/// Arithmetic on registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Alu {
    Mov,
    Add,
    Sub,
    MulLo,
    MulHi,
    MulWide,
    MadLo,
    MadHi,
    MadWide,
    Div,
    DivApprox,
    Rem,
    Min,
    Max,
    Neg,
    Abs,
    And,
    Or,
    Xor,
    Not,
    Cnot,
    Shl,
    Shr,
    Bfi,
    Bfe,
    Bfind,
    BfindShift,
    Brev,
    Clz,
    Popc,
    Prmt,
    ShfLWrap,
    ShfLClamp,
    ShfRWrap,
    ShfRClamp,
    Lop3,
    Fma,
    Ex2,
    Lg2,
    Rcp,
    Sqrt,
    Rsqrt,
    Sin,
    Cos,
    Tanh,
    CopySign,
    CvtaToGeneric,
    CvtaFromGeneric,
}

/// Rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Round {
    Near,
    Zero,
    Down,
    Up,
    /// To nearest, ties away from zero.
    Away,
}

/// Modifiers of floating-point arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Rounding.
    pub round: Round,
    /// Subnormal numbers count as 0.
    pub ftz: bool,
    /// The result is clamped to [0, 1].
    pub sat: bool,
    /// `cvt` to a whole number.
    pub integer: bool,
    /// NaN in, NaN out, for min and max.
    pub nan: bool,
    /// Negative results of `cvt.relu` are 0.
    pub relu: bool,
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

/// Operations on predicates, and of atomics and reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BitOp {
    And,
    Or,
    Xor,
}

/// What an atomic does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AtomOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Inc,
    Dec,
}

/// How lanes are paired by `shfl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Shfl {
    Idx,
    Up,
    Down,
    Bfly,
}

/// What `vote` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Vote {
    Any,
    All,
    Uni,
    Ballot,
}

/// What a barrier of the block does with those that come.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum BarKind {
    Sync,
    Arrive,
    RedAnd(u32, PredSrc),
    RedOr(u32, PredSrc),
    RedPopc(u32, PredSrc),
}

/// Operand A of `wgmma`.
#[derive(Clone, Debug, PartialEq)]
pub enum WgmmaA {
    /// Four registers a thread.
    Regs([u32; 4]),
    /// A tile in shared memory.
    Desc(Src),
}

/// A warpgroup's multiply-add.
#[derive(Clone, Debug, PartialEq)]
pub struct Wgmma {
    /// Columns of B.
    pub n: u32,
    /// Type of A and B.
    pub ty: Ty,
    /// Accumulators.
    pub d: Box<[u32]>,
    /// A.
    pub a: WgmmaA,
    /// B's descriptor.
    pub b: Src,
    /// Whether the accumulators are added to.
    pub scale_d: PredSrc,
    /// Whether A and B are negated.
    pub negate: [bool; 2],
    /// Whether A and B are MN-major.
    pub transposed: [bool; 2],
}

/// A warp's multiply-add.
#[derive(Clone, Debug, PartialEq)]
pub struct Mma {
    /// Depth: 4 or 8 for TF32, 8 or 16 for half-size types.
    pub k: u32,
    /// Type of A and B.
    pub ty: Ty,
    /// D.
    pub d: [u32; 4],
    /// A.
    pub a: Box<[u32]>,
    /// B.
    pub b: Box<[u32]>,
    /// C.
    pub c: [Src; 4],
}

/// What an instruction does.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Op {
    Alu {
        f: Alu,
        ty: Ty,
        mode: Mode,
        d: u32,
        a: Src,
        b: Src,
        c: Src,
        e: Src,
    },
    Setp {
        cmp: Cmp,
        ty: Ty,
        ftz: bool,
        d: u32,
        q: u32,
        combine: Option<(BitOp, PredSrc)>,
        a: Src,
        b: Src,
    },
    Selp {
        wide: bool,
        d: u32,
        a: Src,
        b: Src,
        p: PredSrc,
    },
    Pred {
        f: Option<BitOp>,
        negate: bool,
        d: u32,
        a: PredSrc,
        b: PredSrc,
    },
    Cvt {
        to: Ty,
        from: Ty,
        mode: Mode,
        d: u32,
        d_wide: bool,
        a: Src,
        a_wide: bool,
        b: Option<Src>,
    },
    /// `mov` of several registers into a wider one.
    Pack {
        ty: Ty,
        d: u32,
        parts: Box<[Src]>,
    },
    /// `mov` of a register into several narrower ones.
    Unpack {
        ty: Ty,
        a: Src,
        parts: Box<[u32]>,
    },
    Ld {
        space: Space,
        ty: Ty,
        sem: Sem,
        scope: Scope,
        /// `.nc`: nobody writes there while the kernel runs.
        constant: bool,
        wide: bool,
        d: Box<[u32]>,
        at: Addr,
    },
    St {
        space: Space,
        ty: Ty,
        sem: Sem,
        scope: Scope,
        wide: bool,
        s: Box<[Src]>,
        at: Addr,
    },
    Atom {
        space: Space,
        op: AtomOp,
        ty: Ty,
        sem: Sem,
        scope: Scope,
        d: u32,
        at: Addr,
        b: Src,
        c: Src,
    },
    Bra {
        target: u32,
    },
    Exit,
    Bar {
        kind: BarKind,
        id: Src,
        threads: Option<Src>,
        aligned: bool,
    },
    WarpSync {
        mask: Src,
    },
    ClusterArrive {
        release: bool,
    },
    ClusterWait {
        acquire: bool,
    },
    Shfl {
        kind: Shfl,
        d: u32,
        p: u32,
        a: Src,
        b: Src,
        c: Src,
        mask: Src,
    },
    Vote {
        kind: Vote,
        d: u32,
        p: PredSrc,
        mask: Src,
    },
    Redux {
        op: AtomOp,
        ty: Ty,
        d: u32,
        a: Src,
        mask: Src,
    },
    Elect {
        d: u32,
        p: u32,
        mask: Src,
    },
    Activemask {
        d: u32,
    },
    Fence {
        sem: Sem,
        scope: Scope,
    },
    FenceProxyAsync {
        global: bool,
        shared: bool,
    },
    FenceMbarrierInit,
    MbarInit {
        at: Addr,
        count: Src,
    },
    MbarInval {
        at: Addr,
    },
    /// `expect`: bytes announced; `arrive`: how many arrive, if any.
    MbarArrive {
        space: Space,
        at: Addr,
        release: bool,
        expect: Option<Src>,
        arrive: Option<Src>,
        d: u32,
    },
    MbarCompleteTx {
        space: Space,
        at: Addr,
        bytes: Src,
    },
    MbarWait {
        at: Addr,
        d: u32,
        parity: Src,
        blocking: bool,
        acquire: bool,
    },
    CpAsync {
        bytes: u32,
        dst: Addr,
        src: Addr,
        valid: Option<Src>,
        ignore: Option<PredSrc>,
    },
    CpAsyncCommit,
    CpAsyncWait {
        pending: u32,
    },
    CpAsyncMbarArrive {
        at: Addr,
        noinc: bool,
    },
    TmaLoad {
        dims: u32,
        dst: Addr,
        map: Addr,
        coords: Box<[Src]>,
        bar: Addr,
        multicast: Option<Src>,
    },
    TmaStore {
        dims: u32,
        map: Addr,
        src: Addr,
        coords: Box<[Src]>,
    },
    BulkLoad {
        dst: Addr,
        src: Addr,
        bytes: Src,
        bar: Addr,
        multicast: Option<Src>,
    },
    BulkStore {
        dst: Addr,
        src: Addr,
        bytes: Src,
    },
    /// A store that completes on an mbarrier, of 32-bit registers.
    StAsync {
        at: Addr,
        s: Box<[Src]>,
        bar: Addr,
    },
    BulkCommit,
    BulkWait {
        pending: u32,
        read: bool,
    },
    GridWait,
    GridLaunch,
    Mapa {
        d: u32,
        wide: bool,
        a: Src,
        rank: Src,
    },
    GetCtaRank {
        d: u32,
        wide: bool,
        a: Src,
    },
    SetMaxReg,
    WgmmaFence,
    WgmmaCommit,
    WgmmaWait {
        pending: u32,
    },
    Wgmma(Box<Wgmma>),
    Mma(Box<Mma>),
    LdMatrix {
        d: Box<[u32]>,
        at: Addr,
        trans: bool,
    },
    StMatrix {
        s: Box<[Src]>,
        at: Addr,
        trans: bool,
    },
    Nop,
    Trap,
}

/// An instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Instr {
    /// What it does.
    pub op: Op,
    /// Where it is carried out.
    pub guard: Option<(u32, bool)>,
    /// Line of the PTX.
    pub line: u32,
    /// Index into [`Entry::locations`]; 0: unknown.
    pub location: u32,
}

/// A place in a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Location {
    /// Index of the file.
    pub file: u32,
    /// Line.
    pub line: u32,
    /// Where it was inlined: file and line.
    pub inlined: Option<(u32, u32)>,
}

/// A kernel's parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamDecl {
    /// Its name.
    pub name: String,
    /// Where it begins.
    pub offset: u32,
    /// Bytes.
    pub size: u32,
}

/// A variable in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// A power of two.
    pub align: u32,
    /// Bytes.
    pub size: u32,
    /// Initial bytes, if any.
    pub init: Vec<u8>,
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its parameters.
    pub params: Vec<ParamDecl>,
    /// Bytes of all parameters.
    pub param_bytes: u32,
    /// Bytes of its static shared memory.
    pub static_shared: u32,
    /// Bytes of local memory of a thread.
    pub local_bytes: u32,
    /// Registers by class: predicates, narrow and wide ones.
    pub registers: [u32; 3],
    /// Its instructions.
    pub code: Vec<Instr>,
    /// Places in source files.
    pub locations: Vec<Location>,
    /// The most threads of a block, where the kernel says so.
    pub max_threads: Option<u32>,
    /// log2 of the smallest access to shared and to global memory.
    pub grain: [u32; 2],
}
