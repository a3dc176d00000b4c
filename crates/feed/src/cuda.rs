// SPDX-License-Identifier: Apache-2.0
//! Registers batch memory with the CUDA driver, so that a GPU can read it directly.
//!
//! The driver library is loaded at run time, when a device is first used. No other code needs the driver, so everything
//! else works on a machine without one. Owns the registrations and their contexts. The caller issues the copies and
//! waits for them.

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use libloading::Library;
use penstock_types::{Error, Result};

use super::batch_buffer::{Hold, Tensor};

const DRIVER: &str = "libcuda.so.1";

/// `CU_MEMHOSTREGISTER_PORTABLE`: the memory is pinned for all contexts, so the framework can use any context.
const PORTABLE: c_uint = 1;

type Context = *mut c_void;

/// Declares functions of the driver with the types of the driver's header.
macro_rules! calls {
    ($($field:ident: $symbol:literal ($($argument:ty),*);)*) => {
        struct Calls {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Calls {
            fn find(library: &Library) -> std::result::Result<Self, libloading::Error> {
                // SAFETY: the types match cuda.h, and a versioned symbol never changes its type.
                Ok(Self { $($field: *unsafe { library.get($symbol) }?,)* })
            }
        }
    };
}

calls! {
    init: c"cuInit" (c_uint);
    device: c"cuDeviceGet" (*mut c_int, c_int);
    retain: c"cuDevicePrimaryCtxRetain" (*mut Context, c_int);
    release: c"cuDevicePrimaryCtxRelease_v2" (c_int);
    push: c"cuCtxPushCurrent_v2" (Context);
    pop: c"cuCtxPopCurrent_v2" (*mut Context);
    register: c"cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    unregister: c"cuMemHostUnregister" (*mut c_void);
    describe: c"cuGetErrorString" (c_int, *mut *const c_char);
}

/// A CUDA device of this process. Uses the device's primary context, as frameworks do.
pub struct CudaDevice {
    calls: Calls,
    context: Context,
    device: c_int,
    pid: u32,
}

// SAFETY: any thread may use a context after it makes the context current, and every call here does so.
unsafe impl Send for CudaDevice {}
// SAFETY: as for `Send`. The driver does its own locking.
unsafe impl Sync for CudaDevice {}

impl CudaDevice {
    /// Opens device `number` of the devices visible to this process. An error states why the device cannot be opened.
    pub fn open(number: u32) -> Result<Arc<Self>> {
        let unsupported = |why: String| Error::Unsupported {
            what: format!("registering memory with CUDA device {number}"),
            by: format!("this machine: {why}"),
        };
        let not_found = |why: libloading::Error| unsupported(why.source().unwrap_or(&why).to_string());
        // SAFETY: loading the library only runs the driver's own initialisers, as in any CUDA process.
        let library = unsafe { Library::new(DRIVER) }.map_err(not_found)?;
        let calls = Calls::find(&library).map_err(not_found)?;
        let (mut device, mut context) = (0, std::ptr::null_mut());
        let failed = |code: c_int| unsupported(error_text(&calls, code));
        // SAFETY: the arguments match cuda.h, and both pointers outlive the calls.
        unsafe {
            succeeded((calls.init)(0)).map_err(failed)?;
            succeeded((calls.device)(&raw mut device, c_int::try_from(number).unwrap_or(c_int::MAX)))
                .map_err(failed)?;
            succeeded((calls.retain)(&raw mut context, device)).map_err(failed)?;
        }
        // The library is never unloaded, because the driver runs its own threads.
        std::mem::forget(library);
        Ok(Arc::new(Self { calls, context, device, pid: std::process::id() }))
    }

    /// Registers the memory of the batch that contains `tensor`, unless that memory is already registered. Returns
    /// false if the memory has an unusual size. Such memory would serve only one batch, so its registration would not
    /// pay off.
    pub fn hold(self: &Arc<Self>, tensor: &Tensor) -> Result<bool> {
        if self.pid != std::process::id() {
            return Err(Error::bug("a forked child cannot use its parent's CUDA device"));
        }
        tensor.hold(|start, bytes| {
            // SAFETY: the range is whole pages of one mapping, which outlives the registration (see `Hold`).
            self.within(|| unsafe { (self.calls.register)(start.as_ptr().cast(), bytes, PORTABLE) })?;
            Ok(Box::new(Registered { device: self.clone(), start }) as Hold)
        })
    }

    /// Runs `call` with the device's context as the current context, then restores the thread's previous context.
    fn within(&self, call: impl FnOnce() -> c_int) -> Result<()> {
        let failed = |code: c_int| Error::System {
            place: format!("CUDA device {}", self.device),
            reason: format!("the memory of a batch cannot be registered: {}", error_text(&self.calls, code)),
        };
        // SAFETY: the context is retained as long as `self` lives.
        succeeded(unsafe { (self.calls.push)(self.context) }).map_err(failed)?;
        let done = call();
        let mut popped = std::ptr::null_mut();
        // SAFETY: this pops the context that was pushed above.
        unsafe { (self.calls.pop)(&raw mut popped) };
        succeeded(done).map_err(failed)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            // SAFETY: `open` retained the context exactly once.
            unsafe { (self.calls.release)(self.device) };
        }
    }
}

/// Registration of memory with the driver. Dropping this value ends the registration.
struct Registered {
    device: Arc<CudaDevice>,
    start: NonNull<u8>,
}

// SAFETY: the address is only passed to the driver.
unsafe impl Send for Registered {}

impl Drop for Registered {
    fn drop(&mut self) {
        // A forked child inherits no registration. When the process exits, the driver may already be unloaded; the call
        // then returns an error.
        if self.device.pid == std::process::id() {
            // SAFETY: the memory at this address was registered once, and is still mapped.
            let _ = self.device.within(|| unsafe { (self.device.calls.unregister)(self.start.as_ptr().cast()) });
        }
    }
}

fn succeeded(code: c_int) -> std::result::Result<(), c_int> {
    if code == 0 { Ok(()) } else { Err(code) }
}

fn error_text(calls: &Calls, code: c_int) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the driver returns static strings.
    let known = unsafe { (calls.describe)(code, &raw mut text) } == 0 && !text.is_null();
    // SAFETY: the driver returned a static string, and the pointer is not null.
    if known { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() } else { format!("error {code}") }
}
