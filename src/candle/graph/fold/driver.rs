//! The graph itself, read and changed.

use super::node::{Chain, Step, Work};
use super::rules::{stages, Product};
use crate::candle::graph::nodes::{kind, nodes, Copy};
use crate::device::{driver_function, CurrentContext};
use crate::error::{Error, Result};
use crate::gemm::launch::journal::Launched;
use crate::gemm::launch::launch_as_node;
use crate::gemm::launch::tensor_map::shows_addresses;
use cudarc::driver::{result, sys, DriverError};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_void, CStr};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::OnceLock;

/// What was folded into products of a graph.
#[derive(Debug, Default)]
pub(in crate::candle::graph) struct Folded {
    /// How many kernels of others.
    pub kernels: usize,
    /// The kernels that must not run.
    pub idle: Vec<sys::CUgraphNode>,
    /// The numbers of the products.
    pub products: Vec<usize>,
}

/// Folds kernels into the products before them, as far as that can be done. What comes back tells which kernels are to be switched
/// off where the graph is made ready to run; without that it computes something else.
///
/// # Safety
///
/// The graph is alive, was recorded on `stream` in the context that is current, while its products were `launched`, and has not
/// been made ready to run. The stream is not being recorded now.
///
/// # Errors
///
/// What the driver reports of a change, and a product that was left out and cannot be folded: the graph must not be used then.
pub(in crate::candle::graph) unsafe fn fold(
    graph: sys::CUgraph,
    launched: &[Launched],
    stream: sys::CUstream,
) -> Result<Folded> {
    let mut folded = Folded::default();
    if launched.is_empty() {
        return Ok(folded);
    }
    // SAFETY: the graph is alive.
    let Some((chain, nodes)) = Functions::get().and_then(|functions| unsafe { functions.read(graph, launched) }) else {
        return Ok(folded);
    };
    let context = CurrentContext::get()?;
    let seen = RefCell::new(HashMap::new());
    let view = |address: u64, words: usize| -> Option<Vec<u64>> {
        let mut seen = seen.borrow_mut();
        let known = seen.entry((address, words)).or_insert_with(|| {
            let mut numbers = vec![0u64; words];
            // SAFETY: there is room for so many; the driver refuses addresses that it does not know, and the stream is waited for
            // before the numbers are read or go.
            let read = unsafe { result::memcpy_dtoh_async(&mut numbers, address, stream) };
            // SAFETY: the stream is alive.
            let waited = unsafe { result::stream::synchronize(stream) };
            read.and(waited).ok().map(|()| numbers)
        });
        known.clone()
    };
    for launched in launched {
        let nothing = || match launched.left_out {
            true => Err(Error::Problem(
                "a product was left out of a graph that nothing there computes".into(),
            )),
            false => Ok(()),
        };
        let Some(place) = nodes.iter().position(|node| *node == Node::of(launched)) else {
            nothing()?;
            continue;
        };
        let product = Product {
            place,
            problem: *launched.plan.problem,
            at: launched.at,
            alpha: launched.alpha,
        };
        let stages = stages(&chain, &product, view);
        let planned = stages.iter().enumerate().rev().find_map(|(before, stage)| {
            let plan = launched.with(&stage.problem, &context).ok()??;
            Some((before, stage, plan))
        });
        let Some((before, stage, plan)) = planned else {
            nothing()?;
            continue;
        };
        let scalars = (stage.alpha, launched.beta);
        // SAFETY: the kernel at the stage's place writes the same memory, from what the product reads and the kernels up to there
        // do: all of it is there and as it was when the product ran, as `rules` makes sure. The workspace is the product's own,
        // of a kernel that is switched off.
        unsafe {
            launch_as_node(
                nodes[stage.place].handle()?,
                &plan,
                &stage.at,
                scalars,
                launched.workspace,
                &context,
            )
        }?;
        folded.kernels += before + 1;
        folded.products.push(launched.number);
        let places = stages[..before].iter().map(|stage| stage.place);
        let idle = std::iter::once(place)
            .chain(places)
            .filter_map(|place| nodes[place].handle().ok());
        folded.idle.extend(idle);
    }
    Ok(folded)
}

/// What runs at a place of a chain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Node {
    Handle(sys::CUgraphNode),
    /// A product of this number, which was left out.
    LeftOut(usize),
}

impl Node {
    fn of(launched: &Launched) -> Self {
        match launched.left_out {
            true => Node::LeftOut(launched.number),
            false => Node::Handle(launched.node),
        }
    }

    fn handle(self) -> Result<sys::CUgraphNode> {
        match self {
            Node::Handle(node) => Ok(node),
            Node::LeftOut(number) => Err(Error::Problem(format!("product {number} of a graph was left out"))),
        }
    }
}

/// Functions of newer drivers.
#[derive(Clone, Copy)]
struct Functions {
    edges: GetEdges,
    name: GetName,
    parameter: GetParameter,
}

/// `CUgraphEdgeData`: zeros for a node that waits for the end of another.
type Edge = [u8; 8];
/// `cuGraphGetEdges_v2`, since CUDA 12.3.
type GetEdges = unsafe extern "C" fn(
    sys::CUgraph,
    *mut sys::CUgraphNode,
    *mut sys::CUgraphNode,
    *mut Edge,
    *mut usize,
) -> sys::CUresult;
/// `cuFuncGetName`, since CUDA 12.3.
type GetName = unsafe extern "C" fn(*mut *const c_char, sys::CUfunction) -> sys::CUresult;
/// `cuFuncGetParamInfo`, since CUDA 12.4.
type GetParameter = unsafe extern "C" fn(sys::CUfunction, usize, *mut usize, *mut usize) -> sys::CUresult;

impl Functions {
    /// All of them; `None` where the driver is older.
    fn get() -> Option<Self> {
        static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
        *FUNCTIONS.get_or_init(|| {
            let [edges, name, parameter] = [
                driver_function(c"cuGraphGetEdges", 12_030),
                driver_function(c"cuFuncGetName", 12_030),
                driver_function(c"cuFuncGetParamInfo", 12_040),
            ];
            // SAFETY: what the driver finds by these names and versions has these types, and null is `None`.
            unsafe {
                Some(Functions {
                    edges: std::mem::transmute::<*mut c_void, Option<GetEdges>>(edges)?,
                    name: std::mem::transmute::<*mut c_void, Option<GetName>>(name)?,
                    parameter: std::mem::transmute::<*mut c_void, Option<GetParameter>>(parameter)?,
                })
            }
        })
    }

    /// The graph's nodes in the order in which they run, if each one follows one other, and what they do. Of the products that were
    /// `launched` all addresses are known.
    ///
    /// # Safety
    ///
    /// The graph must be alive.
    unsafe fn read(self, graph: sys::CUgraph, launched: &[Launched]) -> Option<(Chain, Vec<Node>)> {
        // SAFETY: the graph is alive.
        let nodes = unsafe { nodes(graph) }.ok()?;
        // In a chain there is one edge less than there are nodes. (With no place for what edges are, the driver may refuse to count.)
        let mut count = nodes.len();
        let (mut from, mut to) = (vec![null_mut(); count], vec![null_mut(); count]);
        let mut edges: Vec<Edge> = vec![Edge::default(); count];
        // SAFETY: there is room for so many.
        let status = unsafe {
            (self.edges)(
                graph,
                from.as_mut_ptr(),
                to.as_mut_ptr(),
                edges.as_mut_ptr(),
                &mut count,
            )
        };
        status.result().ok()?;
        if count + 1 != nodes.len() {
            return None;
        }
        from.truncate(count);
        to.truncate(count);
        let waits = |edge: &Edge| *edge == Edge::default();
        let pairs = to.iter().zip(edges.iter().map(waits));
        let next: HashMap<_, _> = from.iter().zip(pairs).collect();
        let first = nodes.iter().find(|node| !to.contains(node))?;
        let after = |&(node, _): &(&sys::CUgraphNode, bool)| next.get(node).copied();
        // No longer than there are nodes: a graph has no circles, but who knows.
        let ordered: Vec<_> = std::iter::successors(Some((first, true)), after)
            .take(nodes.len() + 1)
            .collect();
        if ordered.len() != nodes.len() {
            return None;
        }
        let (mut steps, mut places) = (Vec::new(), Vec::new());
        let touch = |product: &Launched| Work::Touch(product.addresses().into());
        for (&node, waits) in ordered {
            let is_here = |product: &&Launched| product.node == node;
            let product = launched.iter().filter(|product| !product.left_out).find(is_here);
            steps.push(Step {
                work: match product {
                    Some(product) => touch(product),
                    // SAFETY: the node is one of a graph that is alive.
                    None => unsafe { self.work(node) }.unwrap_or(Work::Unknown),
                },
                waits,
            });
            places.push(Node::Handle(node));
            for product in launched.iter().filter(|product| product.left_out).filter(is_here) {
                steps.push(Step {
                    work: touch(product),
                    waits: true,
                });
                places.push(Node::LeftOut(product.number));
            }
        }
        Some((Chain::new(steps), places))
    }

    /// # Safety
    ///
    /// The node must be one of a graph that is alive.
    unsafe fn work(self, node: sys::CUgraphNode) -> std::result::Result<Work, DriverError> {
        // SAFETY: the node is alive, and of the kind that each function is for; places outlive the calls, and zeros are right for
        // what the driver does not write.
        unsafe {
            Ok(match kind(node)? {
                kind::KERNEL => self.kernel(node)?,
                kind::MEMCPY => match Copy::of(node)?.addresses {
                    Some(addresses) => Work::Touch(addresses.into()),
                    None => Work::Unknown,
                },
                kind::MEMSET => {
                    let mut parameters = MaybeUninit::<sys::CUDA_MEMSET_NODE_PARAMS>::zeroed();
                    let at = parameters.as_mut_ptr();
                    sys::cuGraphMemsetNodeGetParams(node, at).result()?;
                    Work::Touch(vec![(*at).dst])
                }
                kind::EMPTY => Work::Touch(Vec::new()),
                kind::ALLOCATION => {
                    let mut parameters = MaybeUninit::<sys::CUDA_MEM_ALLOC_NODE_PARAMS>::zeroed();
                    let at = parameters.as_mut_ptr();
                    sys::cuGraphMemAllocNodeGetParams(node, at).result()?;
                    Work::Allocate((*at).dptr..(*at).dptr + (*at).bytesize as u64)
                }
                kind::FREE => {
                    let mut address = 0;
                    sys::cuGraphMemFreeNodeGetParams(node, &mut address).result()?;
                    Work::Free(address)
                }
                _ => Work::Unknown,
            })
        }
    }

    /// # Safety
    ///
    /// The node must be a kernel of a graph that is alive.
    unsafe fn kernel(self, node: sys::CUgraphNode) -> std::result::Result<Work, DriverError> {
        let mut described = MaybeUninit::<sys::CUDA_KERNEL_NODE_PARAMS>::zeroed();
        let at = described.as_mut_ptr();
        // SAFETY: the node is a kernel, and the place outlives the call; handles and pointers may be null.
        let (mut function, kernel, values) = unsafe {
            sys::cuGraphKernelNodeGetParams_v2(node, at).result()?;
            ((*at).func, (*at).kern, (*at).kernelParams)
        };
        if function.is_null() && !kernel.is_null() {
            // SAFETY: the handle is the driver's.
            unsafe { sys::cuKernelGetFunction(&mut function, kernel) }.result()?;
        }
        if function.is_null() || values.is_null() {
            return Ok(Work::Unknown);
        }
        let mut name = std::ptr::null();
        // SAFETY: the handle is the driver's; the name lives as long as the function.
        let name = unsafe {
            (self.name)(&mut name, function).result()?;
            match name.is_null() {
                true => String::new(),
                false => CStr::from_ptr(name).to_string_lossy().into_owned(),
            }
        };
        let mut parameters = Vec::new();
        loop {
            let (mut offset, mut bytes) = (0, 0);
            // SAFETY: the handle is the driver's; the places outlive the call.
            match unsafe { (self.parameter)(function, parameters.len(), &mut offset, &mut bytes) } {
                sys::CUresult::CUDA_SUCCESS => (),
                // That was the last one.
                sys::CUresult::CUDA_ERROR_INVALID_VALUE => break,
                status => return Err(DriverError(status)),
            }
            // SAFETY: a kernel's node has a value of each parameter's size, until it is changed.
            let value = unsafe { std::slice::from_raw_parts((*values.add(parameters.len())).cast::<u8>(), bytes) };
            parameters.push(value.to_vec());
        }
        let has_room = |parameter: &Vec<u8>| parameter.len() >= size_of::<sys::CUtensorMap>();
        if !shows_addresses() && parameters.iter().any(has_room) {
            return Ok(Work::Unknown);
        }
        Ok(Work::Kernel { name, parameters })
    }
}
