// SPDX-License-Identifier: Apache-2.0
//! Parses the EXIF orientation, and converts coordinates between the displayed and the stored image.

use super::crop::{Region, Window};

/// Conversion from a displayed pixel to a stored one: first swaps the axes, then reverses the stored axes that are
/// marked as backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Turn {
    pub(super) swapped: bool,
    pub(super) x_backwards: bool,
    pub(super) y_backwards: bool,
}

impl Turn {
    /// Converts an EXIF orientation of 1 to 8; any other value counts as 1.
    pub(super) fn of(orientation: u8) -> Self {
        Self {
            swapped: matches!(orientation, 5..=8),
            x_backwards: matches!(orientation, 2 | 3 | 7 | 8),
            y_backwards: matches!(orientation, 3 | 4 | 6 | 7),
        }
    }

    /// Converts the width and height of the stored image to those of the displayed image, or the reverse.
    pub(super) fn shown(self, width: u32, height: u32) -> (u32, u32) {
        if self.swapped { (height, width) } else { (width, height) }
    }

    /// Converts a region of the displayed image to a region of the stored image, which has this width and height.
    pub(super) fn stored(self, shown: Region, width: u32, height: u32) -> Region {
        let Region { mut x, mut y, width: mut w, height: mut h, .. } = shown;
        if self.swapped {
            (x, y, w, h) = (y, x, h, w);
        }
        if self.x_backwards {
            x = f64::from(width) - x - w;
        }
        if self.y_backwards {
            y = f64::from(height) - y - h;
        }
        Region { x, y, width: w, height: h, ..shown }
    }

    /// Like [`Turn::stored`], but for a window of the sample. The sample has this size before it is oriented.
    pub(super) fn stored_window(self, shown: Window, (width, height): (u32, u32)) -> Window {
        let Window { mut left, mut top, width: mut w, height: mut h } = shown;
        if self.swapped {
            (left, top, w, h) = (top, left, h, w);
        }
        if self.x_backwards {
            left = width - left - w;
        }
        if self.y_backwards {
            top = height - top - h;
        }
        Window { left, top, width: w, height: h }
    }
}

/// Parses the orientation from the content of an APP1 segment; `None` if the segment is not EXIF or has no valid
/// orientation.
pub(super) fn orientation(segment: &[u8]) -> Option<u8> {
    of_tiff(segment.strip_prefix(b"Exif\0\0")?)
}

/// Parses the orientation from TIFF data: a file, or EXIF data without its prefix.
pub(super) fn of_tiff(tiff: &[u8]) -> Option<u8> {
    let big = match tiff.get(..4)? {
        [b'M', b'M', 0, 42] => true,
        [b'I', b'I', 42, 0] => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = *tiff.get(at..)?.first_chunk::<2>()?;
        Some(if big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    };
    let long = |at: usize| {
        let bytes = *tiff.get(at..)?.first_chunk::<4>()?;
        Some(if big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    };
    let directory = usize::try_from(long(4)?).ok()?;
    for entry in 0..usize::from(short(directory)?) {
        let at = directory.checked_add(2 + 12 * entry)?;
        // The orientation is tag 0x0112 with type SHORT.
        if short(at)? == 0x0112 && short(at + 2)? == 3 {
            return u8::try_from(short(at + 8)?).ok().filter(|value| (1..=8).contains(value));
        }
    }
    None
}
