//! What the driver says of a graph's nodes.

use cudarc::driver::{sys, DriverError};
use std::mem::MaybeUninit;

/// The kinds of nodes that are known here.
pub(super) mod kind {
    use cudarc::driver::sys::CUgraphNodeType as Kind;

    pub const KERNEL: u32 = Kind::CU_GRAPH_NODE_TYPE_KERNEL as u32;
    pub const MEMCPY: u32 = Kind::CU_GRAPH_NODE_TYPE_MEMCPY as u32;
    pub const MEMSET: u32 = Kind::CU_GRAPH_NODE_TYPE_MEMSET as u32;
    pub const HOST: u32 = Kind::CU_GRAPH_NODE_TYPE_HOST as u32;
    pub const GRAPH: u32 = Kind::CU_GRAPH_NODE_TYPE_GRAPH as u32;
    pub const EMPTY: u32 = Kind::CU_GRAPH_NODE_TYPE_EMPTY as u32;
    pub const ALLOCATION: u32 = Kind::CU_GRAPH_NODE_TYPE_MEM_ALLOC as u32;
    pub const FREE: u32 = Kind::CU_GRAPH_NODE_TYPE_MEM_FREE as u32;
}

/// The nodes of a graph.
///
/// # Safety
///
/// The graph must be alive.
pub(super) unsafe fn nodes(graph: sys::CUgraph) -> std::result::Result<Vec<sys::CUgraphNode>, DriverError> {
    let mut count = 0;
    // SAFETY: without a place for them the driver tells the number.
    unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count) }.result()?;
    let mut nodes: Vec<sys::CUgraphNode> = vec![std::ptr::null_mut(); count];
    if count > 0 {
        // SAFETY: there is room for so many.
        unsafe { sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count) }.result()?;
    }
    nodes.truncate(count);
    Ok(nodes)
}

/// The kind of a node. A number: newer drivers know kinds that the enumeration does not.
///
/// # Safety
///
/// The node must be one of a graph that is alive.
pub(super) unsafe fn kind(node: sys::CUgraphNode) -> std::result::Result<u32, DriverError> {
    let mut kind = kind::KERNEL;
    // SAFETY: the node is alive, and the enumeration is a number of 32 bits.
    unsafe { sys::cuGraphNodeGetType(node, std::ptr::from_mut(&mut kind).cast()) }.result()?;
    Ok(kind)
}

/// A copy in a graph.
pub(super) struct Copy {
    pub from_host: bool,
    pub to_host: bool,
    pub bytes: usize,
    /// Where it reads and writes, on the device or the host; `None` if either is an array, which has no address.
    pub addresses: Option<[u64; 2]>,
}

impl Copy {
    /// # Safety
    ///
    /// The node must be a copy of a graph that is alive.
    pub(super) unsafe fn of(node: sys::CUgraphNode) -> std::result::Result<Self, DriverError> {
        let mut parameters = MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
        let at = parameters.as_mut_ptr();
        // SAFETY: what the caller vouches for; the place outlives the call. Kinds of memory are read as the numbers of 32 bits
        // that they are, and zeros are right for all else.
        unsafe {
            sys::cuGraphMemcpyNodeGetParams(node, at).result()?;
            let source = (&raw const (*at).srcMemoryType).cast::<u32>().read();
            let target = (&raw const (*at).dstMemoryType).cast::<u32>().read();
            Ok(Copy {
                from_host: is_host(source, (*at).srcDevice),
                to_host: is_host(target, (*at).dstDevice),
                bytes: (*at).WidthInBytes * (*at).Height.max(1) * (*at).Depth.max(1),
                addresses: address(source, (*at).srcDevice, (*at).srcHost)
                    .zip(address(target, (*at).dstDevice, (*at).dstHost))
                    .map(|(from, to)| [from, to]),
            })
        }
    }
}

/// Where memory of this kind begins, which is on the device or the host.
fn address(kind: u32, device: sys::CUdeviceptr, host: *const std::ffi::c_void) -> Option<u64> {
    const HOST: u32 = sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32;
    const ARRAY: u32 = sys::CUmemorytype::CU_MEMORYTYPE_ARRAY as u32;
    match kind {
        HOST => Some(host as u64),
        ARRAY => None,
        _ => Some(device),
    }
}

/// Whether memory of this kind, or else at this address, is the host's.
fn is_host(kind: u32, address: sys::CUdeviceptr) -> bool {
    const HOST: u32 = sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32;
    const UNIFIED: u32 = sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED as u32;
    if kind != UNIFIED {
        return kind == HOST;
    }
    let mut found = 0u32;
    let which = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    // SAFETY: the attribute is a number of 32 bits, whose place outlives the call. The address need not be anything.
    let status = unsafe { sys::cuPointerGetAttribute(std::ptr::from_mut(&mut found).cast(), which, address) };
    // Of memory that the driver does not know, which is the host's, it says that the value is invalid.
    status.result().is_err() || found == HOST
}
