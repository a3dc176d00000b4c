// SPDX-License-Identifier: Apache-2.0
//! FLAC, and Vorbis or FLAC in Ogg, by the crate `symphonia`.
//!
//! The crate skips damaged frames and pages; here, they are errors, as are gaps in the packets' times.

use std::io::Cursor;
use std::ops::Range;

use penstock_types::{Error, Result, with_separators};
use symphonia::core::audio::{Audio, AudioBuffer, GenericAudioBufferRef};
use symphonia::core::codecs::audio::well_known::{CODEC_ID_FLAC, CODEC_ID_OPUS, CODEC_ID_VORBIS};
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error as Problem;
use symphonia::core::formats::{FormatOptions, FormatReader, SeekMode, SeekTo, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::core::units::Timestamp;
use symphonia::default::codecs::{FlacDecoder, VorbisDecoder};
use symphonia::default::formats::{FlacReader, OggReader};

use super::{Info, Stream, append, ogg_pages};

/// Maximum samples per byte: a FLAC frame of at least 11 bytes has at most 65,535 samples.
const MAX_EXPANSION: u64 = 6000;
/// Samples of Vorbis that are decoded before a clip: two blocks, which overlap.
const VORBIS_WARM: u64 = 2 * 8192;

/// Samples of a file that `symphonia` reads.
pub(super) struct SymphoniaStream<'a> {
    name: &'static str,
    place: &'a str,
    reader: Box<dyn FormatReader + 'a>,
    decoder: Box<dyn AudioDecoder>,
    track: u32,
    channels: usize,
    /// Samples to decode before a position after a seek.
    warm: u64,
    frames: u64,
    /// Time of the next packet, if it is known, and the sample that is read next.
    next: Option<i64>,
    at: u64,
}

fn damaged(name: &str, place: &str, problem: &str) -> Error {
    Error::corrupt(place, format!("is a damaged {name} file: {problem}"))
}

fn described(problem: &Problem) -> String {
    match problem {
        Problem::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => "it is cut off".to_owned(),
        other => other.to_string(),
    }
}

/// Opens a FLAC or Ogg file. `bytes` begins with its magic number.
pub(super) fn open<'a>(bytes: &'a [u8], place: &'a str) -> Result<(Info, SymphoniaStream<'a>)> {
    let name = if bytes.starts_with(b"fLaC") { "FLAC" } else { "Ogg" };
    let wrong = |problem: &str| damaged(name, place, problem);
    let reader = || -> Result<Box<dyn FormatReader + 'a>> {
        let source = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
        let options = FormatOptions::default();
        match name {
            "FLAC" => FlacReader::try_new(source, options).map(|reader| Box::new(reader) as Box<dyn FormatReader>),
            _ => OggReader::try_new(source, options).map(|reader| Box::new(reader) as Box<dyn FormatReader>),
        }
        .map_err(|problem| wrong(&described(&problem)))
    };
    if name == "Ogg" {
        ogg_pages::check(bytes, place)?;
    }
    let mut opened = reader()?;
    let track = opened.first_track(TrackType::Audio).ok_or_else(|| wrong("it has no audio"))?.clone();
    let params = track.codec_params.as_ref().and_then(|params| params.audio());
    let params = params.ok_or_else(|| wrong("it has no audio"))?;
    let options = AudioDecoderOptions::default();
    let (decoder, warm): (Result<Box<dyn AudioDecoder>, Problem>, u64) = match params.codec {
        CODEC_ID_FLAC => (FlacDecoder::try_new(params, &options).map(|made| Box::new(made) as _), 0),
        CODEC_ID_VORBIS => (VorbisDecoder::try_new(params, &options).map(|made| Box::new(made) as _), VORBIS_WARM),
        CODEC_ID_OPUS => return Err(super::unsupported("Opus in Ogg", place)),
        _ => return Err(super::unsupported("a codec in Ogg other than Vorbis and FLAC", place)),
    };
    let decoder = decoder.map_err(|problem| wrong(&described(&problem)))?;
    let (Some(rate), Some(channels)) = (params.sample_rate, params.channels.as_ref()) else {
        return Err(wrong("it states neither sample rate nor channels"));
    };
    let frames = match track.num_frames {
        Some(frames) => frames,
        None => {
            let counted = counted(opened.as_mut(), track.id).map_err(|problem| wrong(&described(&problem)))?;
            opened = reader()?;
            counted
        }
    };
    if frames > (bytes.len() as u64).saturating_mul(MAX_EXPANSION) {
        let (frames, bytes) = (with_separators(frames), with_separators(bytes.len() as u64));
        return Err(wrong(&format!("it states {frames} samples in {bytes} bytes")));
    }
    let channels = channels.count();
    let info = Info { rate, channels, frames };
    let next = (name == "FLAC").then_some(0);
    Ok((
        info,
        SymphoniaStream { name, place, reader: opened, decoder, track: track.id, channels, warm, frames, next, at: 0 },
    ))
}

/// Number of samples in a stream that does not state it.
fn counted(reader: &mut dyn FormatReader, track: u32) -> Result<u64, Problem> {
    let mut frames = 0u64;
    while let Some(packet) = reader.next_packet()? {
        if packet.track_id == track {
            frames = frames.saturating_add(packet.dur.get());
        }
    }
    Ok(frames)
}

impl SymphoniaStream<'_> {
    fn wrong(&self, problem: &str) -> Error {
        damaged(self.name, self.place, problem)
    }
}

impl Stream for SymphoniaStream<'_> {
    fn seek(&mut self, frame: u64) -> Result<()> {
        self.at = frame;
        if frame <= self.warm {
            return Ok(());
        }
        let ts = Timestamp::new((frame - self.warm) as i64);
        let to = SeekTo::Timestamp { ts, track_id: self.track };
        let found = self.reader.seek(SeekMode::Accurate, to).map_err(|problem| {
            let problem = described(&problem);
            self.wrong(&format!("sample {} cannot be found: {problem}", with_separators(frame)))
        })?;
        self.decoder.reset();
        self.next = self.next.map(|_| found.actual_ts.get());
        Ok(())
    }

    fn read(&mut self, planes: &mut [Vec<f32>]) -> Result<bool> {
        if self.at >= self.frames {
            return Ok(false);
        }
        let (shown, all) = (with_separators(self.at), with_separators(self.frames));
        let packet = loop {
            let packet = self.reader.next_packet().map_err(|problem| self.wrong(&described(&problem)))?;
            match packet {
                Some(packet) if packet.track_id == self.track => break packet,
                Some(_) => {}
                None => return Err(self.wrong(&format!("it ends after {shown} of {all} samples"))),
            }
        };
        let start = packet.pts.get();
        if let Some(next) = self.next {
            if start != next {
                return Err(self.wrong(&format!("samples from {} to {start} are missing or damaged", next)));
            }
            self.next = start.checked_add_unsigned(packet.dur.get());
        }
        let decoded = self.decoder.decode(&packet).map_err(|problem| {
            damaged(
                self.name,
                self.place,
                &format!("sample {shown} of {all} cannot be decoded: {}", described(&problem)),
            )
        })?;
        if decoded.num_planes() != self.channels {
            let planes = decoded.num_planes();
            return Err(damaged(
                self.name,
                self.place,
                &format!("it changes from {} to {planes} channels", self.channels),
            ));
        }
        let frames = decoded.frames() as u64;
        // Packets of Vorbis before the start have negative times, and their samples are removed by the decoder.
        let start = start.max(0) as u64;
        if start > self.at && frames > 0 {
            let start = with_separators(start);
            return Err(damaged(self.name, self.place, &format!("samples {shown} to {start} are missing")));
        }
        let from = self.at.saturating_sub(start).min(frames);
        let until = self.frames.saturating_sub(start).min(frames).max(from);
        let range = from as usize..until as usize;
        match decoded {
            GenericAudioBufferRef::F32(decoded) => append(decoded, range, planes),
            GenericAudioBufferRef::S32(decoded) => scaled(decoded, range, planes),
            _ => return Err(Error::bug(format!("the {} decoder returned samples of another type", self.name))),
        }
        self.at = self.at.max(start + until);
        Ok(true)
    }
}

/// Appends samples of 32 bits as floats in -1..1.
fn scaled(decoded: &AudioBuffer<i32>, range: Range<usize>, planes: &mut [Vec<f32>]) {
    for (plane, to) in decoded.iter_planes().zip(planes) {
        to.extend(plane[range.clone()].iter().map(|&value| value as f32 / 2_147_483_648.0));
    }
}
