// SPDX-License-Identifier: Apache-2.0
//! Tags before and after the audio of a file: ID3, APE and Lyrics3.

/// Maximum length of a Lyrics3 tag of version 1.
const LYRICS3_V1: usize = 11 + 5100 + 9;

/// Length of the ID3v2 tags at the start of `bytes`; 0 if `bytes` lacks such a tag.
pub(super) fn id3_len(bytes: &[u8]) -> usize {
    let mut len = 0;
    while let Some([b'I', b'D', b'3', _, _, flags, a, b, c, d, ..]) = bytes.get(len..) {
        let size = [a, b, c, d].iter().fold(0, |size, part| size << 7 | usize::from(**part & 127));
        len += 10 + size + if flags & 0x10 != 0 { 10 } else { 0 };
    }
    len
}

/// End of the audio. Finds tags from the end of the file backwards, because some tags have no magic number at their
/// start.
pub(super) fn end(bytes: &[u8]) -> usize {
    let mut end = bytes.len();
    loop {
        let rest = &bytes[..end];
        let tag = if rest.len() >= 128 && rest[end - 128..].starts_with(b"TAG") {
            // The enhanced tag of 227 bytes is before the old one.
            if end >= 355 && rest[end - 355..].starts_with(b"TAG+") { 355 } else { 128 }
        } else if rest.ends_with(b"LYRICS200") {
            let size = rest.get(end.wrapping_sub(15)..end - 9).and_then(|size| std::str::from_utf8(size).ok());
            size.and_then(|size| size.parse::<usize>().ok()).map_or(0, |size| size + 15)
        } else if rest.ends_with(b"LYRICSEND") {
            let start = rest[end.saturating_sub(LYRICS3_V1)..].windows(11).position(|start| start == b"LYRICSBEGIN");
            start.map_or(0, |start| end - end.saturating_sub(LYRICS3_V1) - start)
        } else if let Some([b'3', b'D', b'I', _, _, _, a, b, c, d]) = rest.last_chunk() {
            // The footer of an ID3v2 tag. The size excludes the footer and the header, of 10 bytes each.
            [a, b, c, d].iter().fold(0, |size, part| size << 7 | usize::from(**part & 127)) + 20
        } else {
            let ape = rest.last_chunk::<32>().filter(|tag| tag.starts_with(b"APETAGEX"));
            ape.map_or(0, |tag| {
                let size = u32::from_le_bytes([tag[12], tag[13], tag[14], tag[15]]) as usize;
                size + if tag[23] & 0x80 != 0 { 32 } else { 0 }
            })
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
        let enhanced = [&b"TAG+"[..], &[32; 223], &v1].concat();
        let footer = [&b"ID3\x04\0\x10\0\0\0\x05words3DI\x04\0\x10\0\0\0\x05"[..]].concat();
        let lyrics_1 = b"LYRICSBEGINwordsLYRICSEND";
        let more = [&enhanced[..], &footer, lyrics_1];
        for tags in [&old[..], &new, lyrics, &v1, &[&new[..], lyrics, &v1].concat()].into_iter().chain(more) {
            assert_eq!(end(&[b"audio", tags].concat()), 5);
        }
        for broken in [&b"LYRICS200"[..], b"audioLYRICS200", &ape(0x80)] {
            assert_eq!(end(broken), broken.len());
        }
    }
}
