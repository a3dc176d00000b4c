// SPDX-License-Identifier: Apache-2.0
//! Tags before and after the audio of a file: ID3, APE and Lyrics3.

/// Length of the ID3v2 tags at the start of `bytes`; 0 without one.
pub(super) fn id3_len(bytes: &[u8]) -> usize {
    let mut len = 0;
    while let Some([b'I', b'D', b'3', _, _, flags, a, b, c, d, ..]) = bytes.get(len..) {
        let size = [a, b, c, d].iter().fold(0, |size, part| size << 7 | usize::from(**part & 127));
        len += 10 + size + if flags & 0x10 != 0 { 10 } else { 0 };
    }
    len
}

/// End of the audio: what follows are tags, of which some have no mark at their start.
pub(super) fn end(bytes: &[u8]) -> usize {
    let mut end = bytes.len();
    loop {
        let rest = &bytes[..end];
        let tag = match rest {
            _ if rest.len() >= 128 && rest[end - 128..].starts_with(b"TAG") => 128,
            [.., b'L', b'Y', b'R', b'I', b'C', b'S', b'2', b'0', b'0'] => rest
                .get(end.wrapping_sub(15)..end - 9)
                .and_then(|size| std::str::from_utf8(size).ok()?.parse::<usize>().ok())
                .map_or(0, |size| size + 15),
            _ => match rest.last_chunk::<32>() {
                Some(
                    &[
                        b'A',
                        b'P',
                        b'E',
                        b'T',
                        b'A',
                        b'G',
                        b'E',
                        b'X',
                        _,
                        _,
                        _,
                        _,
                        a,
                        b,
                        c,
                        d,
                        _,
                        _,
                        _,
                        _,
                        _,
                        _,
                        _,
                        flags,
                        ..,
                    ],
                ) => u32::from_le_bytes([a, b, c, d]) as usize + if flags & 0x80 != 0 { 32 } else { 0 },
                _ => 0,
            },
        };
        if tag == 0 || tag > end {
            return end;
        }
        end -= tag;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_at_both_ends_are_measured() {
        let id3 = [&b"ID3\x03\0\0\0\0\x01\x02"[..], &[7; 130]].concat();
        assert_eq!(id3_len(&[&id3[..], &id3, b"audio"].concat()), 280);
        let ape = |flags: u8| {
            [&b"APETAGEX\xe8\x03\0\0"[..], &36u32.to_le_bytes(), &[1, 0, 0, 0, 0, 0, 0, flags], &[0; 8]].concat()
        };
        let old = [b"item", &ape(0)[..]].concat();
        let new = [&ape(0xa0)[..], b"item", &ape(0x80)].concat();
        let lyrics = b"LYRICSBEGINwords000016LYRICS200";
        let v1 = [&b"TAG"[..], &[32; 125]].concat();
        for tags in [&old[..], &new, lyrics, &v1, &[&new[..], lyrics, &v1].concat()] {
            assert_eq!(end(&[b"audio", tags].concat()), 5);
        }
        for broken in [&b"LYRICS200"[..], b"audioLYRICS200", &ape(0x80)] {
            assert_eq!(end(broken), broken.len());
        }
    }
}
