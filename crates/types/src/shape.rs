// SPDX-License-Identifier: Apache-2.0
//! Element types and shapes of samples.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// Element type of a tensor; little-endian in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// One byte with the value 0 or 1.
    Bool,
    /// 8-bit unsigned.
    U8,
    /// 8-bit signed.
    I8,
    /// 16-bit unsigned.
    U16,
    /// 16-bit signed.
    I16,
    /// 32-bit unsigned.
    U32,
    /// 32-bit signed.
    I32,
    /// 64-bit unsigned.
    U64,
    /// 64-bit signed.
    I64,
    /// 16-bit float.
    F16,
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
}

impl DType {
    /// All element types.
    pub const ALL: [Self; 12] = [
        Self::Bool,
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::U64,
        Self::I64,
        Self::F16,
        Self::F32,
        Self::F64,
    ];

    /// NumPy's name for the element type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::U16 => "uint16",
            Self::I16 => "int16",
            Self::U32 => "uint32",
            Self::I32 => "int32",
            Self::U64 => "uint64",
            Self::I64 => "int64",
            Self::F16 => "float16",
            Self::F32 => "float32",
            Self::F64 => "float64",
        }
    }

    /// Size of an element in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

impl FromStr for DType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|dtype| dtype.name()).collect();
            Error::config("dtype", format!("`{name}` is not one of {}", known.join(", ")))
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Element type and shape of one field of a sample, in C order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Element type.
    pub dtype: DType,
    /// Shape of one sample.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Returns the number of elements in one sample, or an error on overflow.
    pub fn elements(&self) -> Result<usize> {
        self.shape
            .iter()
            .try_fold(1usize, |product, &side| product.checked_mul(side))
            .filter(|elements| elements.checked_mul(self.dtype.size()).is_some())
            .ok_or_else(|| Error::config("shape", format!("{:?} has more bytes than the address space", self.shape)))
    }

    /// Returns the number of bytes in one sample, or an error on overflow.
    pub fn size_bytes(&self) -> Result<usize> {
        Ok(self.elements()? * self.dtype.size())
    }
}
