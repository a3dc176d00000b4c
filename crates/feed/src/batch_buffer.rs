// SPDX-License-Identifier: Apache-2.0
//! Batch buffers: pooled memory for batches, with one allocation per batch. Every field starts at a multiple of 256
//! bytes, because JAX copies arrays that have a smaller alignment.
//!
//! A slot is the memory of one batch. It belongs to the pipeline until the batch is delivered, and then to the holders
//! of the batch's tensors. When all holders have released the slot, it returns to the pool for a later batch. Memory
//! that is registered with a device stays registered until the memory is returned to the system.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use penstock_store::Mapping;
use penstock_types::{DType, Error, Result, TensorSpec, lock, with_separators};

use super::field::Field;

/// Alignment of every field in a slot, in bytes.
const ALIGN: usize = 256;

/// Layout of a slot: the positions of the fields in a batch of up to `rows` samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Size of one sample of each field, in bytes.
    pub strides: Vec<usize>,
    offsets: Vec<usize>,
    /// Total size of the slot, in bytes.
    pub bytes: usize,
    /// Maximum number of rows.
    pub rows: usize,
}

impl Layout {
    /// Creates the layout of `rows` samples of these fields. Fields of variable length take no space in the layout.
    pub fn new(fields: &[Field], rows: usize) -> Result<Self> {
        let stride = |field: &Field| field.fixed().map_or(Ok(0), |spec| spec.size_bytes());
        let strides = fields.iter().map(|field| Ok((stride(field)?, rows))).collect::<Result<Vec<_>>>()?;
        Self::of(&strides)
    }

    /// Creates the layout of columns, each given as (bytes per row, rows).
    pub fn of(columns: &[(usize, usize)]) -> Result<Self> {
        let rows = columns.iter().map(|&(_, rows)| rows).max().unwrap_or(0);
        let too_large = || Error::config("batch", format!("{rows} samples are larger than the address space"));
        let (mut offsets, mut bytes) = (Vec::new(), 0usize);
        for &(stride, rows) in columns {
            offsets.push(bytes);
            let column = stride.checked_mul(rows).ok_or_else(too_large)?;
            bytes = bytes
                .checked_add(column)
                .and_then(|end| end.checked_next_multiple_of(ALIGN))
                .filter(|&end| end <= isize::MAX as usize)
                .ok_or_else(too_large)?;
        }
        Ok(Self { strides: columns.iter().map(|&(stride, _)| stride).collect(), offsets, bytes, rows })
    }
}

/// Registration of a slot's memory with a device. Dropping it ends the registration.
pub type Hold = Box<dyn Any + Send>;

/// Memory of a slot. Rust drops struct fields in order, so the registration ends before the memory is unmapped.
struct Memory {
    hold: Mutex<Option<Hold>>,
    mapping: Mapping,
}

/// Slots that are not in use.
#[derive(Default)]
struct Free {
    slots: Vec<Memory>,
    /// Maximum number of spare slots.
    most: usize,
}

/// Pool of slots: lends slots, and reuses dropped ones. A pool belongs to one process. A forked child frees the slots
/// that it inherits, and does not reuse them.
pub struct Pool {
    pid: u32,
    may_be_held: bool,
    free: Mutex<Free>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl Pool {
    /// Creates a pool that stores at most `most` spare slots. `may_be_held` allows a device to register the slots.
    /// Registration pays off only if all slots have the same size, because each slot then serves later batches. The
    /// pool stores every registered slot, even beyond `most`.
    pub fn new(most: usize, may_be_held: bool) -> Arc<Self> {
        Arc::new(Self { pid: std::process::id(), may_be_held, free: Mutex::new(Free { slots: Vec::new(), most }) })
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Free> {
        lock(&self.free)
    }

    /// Returns a slot for this layout: a spare slot if one is large enough, else newly allocated memory.
    pub fn take(self: &Arc<Self>, layout: &Arc<Layout>) -> Result<Slot> {
        let used = {
            let mut free = self.free();
            // Take the most recently used slot. Surplus slots are then never touched again.
            let position = free.slots.iter().rposition(|memory| memory.mapping.bytes() >= layout.bytes);
            position.map(|position| free.slots.remove(position))
        };
        let memory = match used {
            Some(memory) => memory,
            None => {
                let mapping = Mapping::new(layout.bytes).map_err(|why| Error::System {
                    place: "memory".to_owned(),
                    reason: format!(
                        "cannot allocate {} bytes for a batch: {why}",
                        with_separators(layout.bytes as u64)
                    ),
                })?;
                Memory { hold: Mutex::default(), mapping }
            }
        };
        Ok(Slot { memory: Some(memory), layout: layout.clone(), pool: Arc::downgrade(self) })
    }
}

/// The memory of one batch.
pub struct Slot {
    memory: Option<Memory>,
    layout: Arc<Layout>,
    /// A weak reference, so that a batch held by the consumer does not keep the memory of an unused pool alive.
    pool: Weak<Pool>,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl Slot {
    /// Layout of the slot's fields.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    fn start(&self) -> NonNull<u8> {
        self.memory.as_ref().map_or(NonNull::dangling(), |memory| memory.mapping.start())
    }

    /// Address of the first byte of a field.
    pub fn field(&self, field: usize) -> NonNull<u8> {
        // SAFETY: the layout put every field inside the mapping.
        unsafe { self.start().add(self.layout.offsets[field]) }
    }

    /// Returns one row of one field.
    ///
    /// # Safety
    /// Nothing else may access that row while the slice lives. The pipeline assigns each row to exactly one task, and
    /// the consumer gets the slot only after the last task is done.
    #[expect(clippy::mut_from_ref, reason = "rows are disjoint; see Safety")]
    pub unsafe fn row(&self, field: usize, row: usize) -> &mut [u8] {
        assert!(row < self.layout.rows, "row {row} is not below {}", self.layout.rows);
        let stride = self.layout.strides[field];
        // SAFETY: the assertion above keeps the slice inside the field; the caller guarantees exclusive access.
        unsafe { std::slice::from_raw_parts_mut(self.field(field).as_ptr().add(row * stride), stride) }
    }

    /// Returns `len` bytes of a field, starting at byte `at`.
    ///
    /// # Safety
    /// Nothing else may access these bytes while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "bytes are disjoint; see Safety")]
    pub unsafe fn bytes(&self, field: usize, at: usize, len: usize) -> &mut [u8] {
        let room =
            self.layout.offsets.get(field + 1).copied().unwrap_or(self.layout.bytes) - self.layout.offsets[field];
        assert!(at <= room && len <= room - at, "{len} bytes at {at} do not fit in {room}");
        // SAFETY: the assertion above keeps the slice inside the field; the caller guarantees exclusive access.
        unsafe { std::slice::from_raw_parts_mut(self.field(field).as_ptr().add(at), len) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(mut memory) = self.memory.take() else { return };
        let Some(pool) = self.pool.upgrade() else { return };
        // A forked child must not wait for the pool's lock: the thread that holds it may exist only in the parent.
        if pool.pid == std::process::id() {
            let is_held = memory.hold.get_mut().unwrap_or_else(PoisonError::into_inner).is_some();
            let mut free = pool.free();
            if is_held || free.slots.len() < free.most {
                free.slots.push(memory);
            }
        }
    }
}

/// One field of a delivered batch. A tensor keeps the batch's slot alive. The holder of the tensor may write to it.
#[derive(Debug, Clone)]
pub struct Tensor {
    slot: Arc<Slot>,
    field: usize,
    /// Element type.
    pub dtype: DType,
    /// Shape of the tensor; the first dimension is the number of rows in the batch.
    pub shape: Vec<usize>,
}

impl Tensor {
    /// Creates a tensor over the first `rows` rows of a field. All of these rows must be written already.
    pub fn new(slot: Arc<Slot>, field: usize, spec: &TensorSpec, rows: usize) -> Self {
        assert!(rows <= slot.layout.rows, "{rows} rows do not fit in {}", slot.layout.rows);
        let shape = std::iter::once(rows).chain(spec.shape.iter().copied()).collect();
        Self { slot, field, dtype: spec.dtype, shape }
    }

    /// Address of the first element. It is aligned to 256 bytes and never null.
    pub fn start(&self) -> NonNull<u8> {
        self.slot.field(self.field)
    }

    /// Size of all rows, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.shape[0] * self.slot.layout.strides[self.field]
    }

    /// Registers the slot's memory with a device, unless an earlier batch has registered it. `register` gets the first
    /// byte and the length of the memory. The registration lasts until the memory is returned to the system. Returns
    /// false if the slots of this pool cannot be registered. A forked child does not inherit registrations.
    pub fn hold(&self, register: impl FnOnce(NonNull<u8>, usize) -> Result<Hold>) -> Result<bool> {
        let may_be = self.slot.pool.upgrade().is_some_and(|pool| pool.may_be_held);
        let Some(memory) = self.slot.memory.as_ref().filter(|_| may_be) else { return Ok(false) };
        let mut hold = lock(&memory.hold);
        if hold.is_none() {
            // Memory that a device reads directly must not move. After a fork, the next write would move it
            // (copy-on-write).
            memory.mapping.keep_from_children().map_err(|why| Error::System {
                place: "memory".to_owned(),
                reason: format!("the memory of a batch cannot be excluded from forked children: {why}"),
            })?;
            *hold = Some(register(memory.mapping.start(), memory.mapping.bytes())?);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Vec<Field> {
        vec![Field::tensor("x", DType::I16, &[3, 5]), Field::tensor("y", DType::F32, &[4])]
    }

    #[test]
    fn slot_fields_are_aligned_and_apart() {
        let layout = Arc::new(Layout::new(&fields(), 7).unwrap());
        let slot = Pool::new(1, true).take(&layout).unwrap();
        assert_eq!((slot.field(0).as_ptr() as usize) % ALIGN, 0);
        assert_eq!(slot.field(1).as_ptr() as usize - slot.field(0).as_ptr() as usize, 256);
        for row in 0..7 {
            // SAFETY: one slice at a time.
            unsafe { slot.row(0, row) }.fill(row as u8);
            // SAFETY: one slice at a time.
            unsafe { slot.row(1, row) }.fill(100 + row as u8);
        }
        // SAFETY: nothing else touches the slot.
        assert!((0..7).all(|row| unsafe { slot.row(0, row) }.iter().all(|&byte| byte == row as u8)));
    }

    #[test]
    fn slot_comes_back_only_when_the_last_tensor_is_gone() {
        let (pool, fields) = (Pool::new(4, true), fields());
        let layout = Arc::new(Layout::new(&fields, 2).unwrap());
        let slot = Arc::new(pool.take(&layout).unwrap());
        let first = slot.start();
        let (x, y) = (
            Tensor::new(slot.clone(), 0, &fields[0].fixed().unwrap(), 2),
            Tensor::new(slot, 1, &fields[1].fixed().unwrap(), 2),
        );
        drop(x);
        let other = pool.take(&layout).unwrap();
        assert_ne!(other.start(), first);
        drop(y);
        assert_eq!(pool.take(&layout).unwrap().start(), first);
    }

    #[test]
    fn slot_is_held_once_from_batch_to_batch_until_its_memory_goes() {
        struct Count(Arc<Mutex<(usize, usize)>>);
        impl Drop for Count {
            fn drop(&mut self) {
                self.0.lock().unwrap().1 += 1;
            }
        }
        let (pool, fields, counted) = (Pool::new(1, true), fields(), Arc::new(Mutex::new((0, 0))));
        let layout = Arc::new(Layout::new(&fields, 2).unwrap());
        let register = |_: NonNull<u8>, bytes: usize| -> Result<Hold> {
            assert!(bytes >= layout.bytes);
            counted.lock().unwrap().0 += 1;
            Ok(Box::new(Count(counted.clone())))
        };
        let tensor = |slot: Slot| Tensor::new(Arc::new(slot), 0, &fields[0].fixed().unwrap(), 2);
        for _ in 0..3 {
            let one = tensor(pool.take(&layout).unwrap());
            assert!(one.hold(register).unwrap() && one.clone().hold(register).unwrap());
        }
        assert_eq!(*counted.lock().unwrap(), (1, 0));
        // The pool stores one spare slot and every registered slot.
        for _ in 0..3 {
            let six: Vec<Tensor> = (0..6).map(|_| tensor(pool.take(&layout).unwrap())).collect();
            assert!(six.iter().all(|one| one.hold(register).unwrap()));
        }
        assert_eq!(*counted.lock().unwrap(), (6, 0));
        let refused = tensor(pool.take(&Arc::new(Layout::new(&fields, 4096).unwrap())).unwrap());
        assert!(refused.hold(|_, _| Err(Error::bug("no device"))).is_err());
        assert!(refused.hold(register).unwrap());
        drop(pool);
        assert_eq!(*counted.lock().unwrap(), (7, 6), "what is kept keeps no more than itself");
        assert!(!refused.hold(register).unwrap(), "nor for longer");
        drop(refused);
        assert_eq!(*counted.lock().unwrap(), (7, 7));
        assert!(!tensor(Pool::new(4, false).take(&layout).unwrap()).hold(register).unwrap());
    }

    #[test]
    fn slot_of_no_rows_still_has_an_address() {
        let layout = Arc::new(Layout::new(&fields(), 0).unwrap());
        let slot = Arc::new(Pool::new(0, false).take(&layout).unwrap());
        assert_eq!(Tensor::new(slot, 1, &fields()[1].fixed().unwrap(), 0).size_bytes(), 0);
    }

    #[test]
    fn layout_refuses_what_no_memory_holds() {
        assert!(Layout::new(&[Field::tensor("x", DType::F64, &[1 << 40])], 1 << 40).is_err());
    }
}
