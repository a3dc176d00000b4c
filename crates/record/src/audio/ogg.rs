// SPDX-License-Identifier: Apache-2.0
//! Ogg: decodes Vorbis or FLAC with the crate `symphonia`.
//!
//! The crate skips damaged pages; this module reports them as errors.

use std::io::Cursor;

use penstock_types::{Error, Result, with_separators};
use symphonia::core::audio::GenericAudioBufferRef;
use symphonia::core::codecs::audio::well_known::{CODEC_ID_FLAC, CODEC_ID_OPUS, CODEC_ID_VORBIS};
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error as Problem;
use symphonia::core::formats::{FormatOptions, FormatReader, SeekMode, SeekTo, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::core::units::Timestamp;
use symphonia::default::codecs::{FlacDecoder, VorbisDecoder};
use symphonia::default::formats::OggReader;

use super::{Info, Stream, append, damaged, ogg_pages, scaled};

const NAME: &str = "Ogg";
/// Number of Vorbis samples to decode before a clip: two blocks, because adjacent blocks overlap.
const VORBIS_WARM: u64 = 2 * 8192;

/// Samples of an Ogg file.
pub(super) struct Ogg<'a> {
    place: &'a str,
    reader: OggReader<'a>,
    decoder: Box<dyn AudioDecoder>,
    track: u32,
    channels: usize,
    /// Number of samples to decode before the target of a seek.
    warm: u64,
    frames: u64,
    /// Next sample to return.
    at: u64,
}

fn described(problem: &Problem) -> String {
    match problem {
        Problem::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => "it is cut off".to_owned(),
        other => other.to_string(),
    }
}

/// Opens an Ogg file. `bytes` begins with the magic number of Ogg.
pub(super) fn open<'a>(bytes: &'a [u8], place: &'a str) -> Result<(Info, Ogg<'a>)> {
    let wrong = |problem: &str| damaged(NAME, place, problem);
    let reader = || {
        let source = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
        OggReader::try_new(source, FormatOptions::default()).map_err(|problem| wrong(&described(&problem)))
    };
    ogg_pages::check(bytes, place)?;
    if bytes.get(28..).is_some_and(|packet| packet.starts_with(b"Speex   ")) {
        return Err(super::unsupported("Speex in Ogg", place));
    }
    let mut opened = reader()?;
    let track = opened.first_track(TrackType::Audio).ok_or_else(|| wrong("it has no audio"))?.clone();
    let params = track.codec_params.as_ref().and_then(|params| params.audio());
    let params = params.ok_or_else(|| wrong("it has no audio"))?;
    let options = AudioDecoderOptions::default();
    let (decoder, warm): (Result<Box<dyn AudioDecoder>, Problem>, u64) = match params.codec {
        // The decoder computes with 32 bits, but the difference of two channels of 32 bits needs 33.
        CODEC_ID_FLAC if params.bits_per_sample == Some(32) => {
            return Err(super::unsupported("FLAC of 32 bits in Ogg", place));
        }
        CODEC_ID_FLAC => (FlacDecoder::try_new(params, &options).map(|made| Box::new(made) as _), 0),
        CODEC_ID_VORBIS => (VorbisDecoder::try_new(params, &options).map(|made| Box::new(made) as _), VORBIS_WARM),
        CODEC_ID_OPUS => return Err(super::unsupported("Opus in Ogg", place)),
        _ => return Err(super::unsupported("an Ogg file whose codec is neither Vorbis nor FLAC", place)),
    };
    let decoder = decoder.map_err(|problem| wrong(&described(&problem)))?;
    let (Some(rate), Some(channels)) = (params.sample_rate, params.channels.as_ref()) else {
        return Err(wrong("it states neither sample rate nor channels"));
    };
    let frames = match track.num_frames {
        Some(frames) => frames,
        None => {
            let counted = counted(&mut opened, track.id).map_err(|problem| wrong(&described(&problem)))?;
            opened = reader()?;
            counted
        }
    };
    let channels = channels.count();
    let info = Info { rate, channels, frames };
    Ok((info, Ogg { place, reader: opened, decoder, track: track.id, channels, warm, frames, at: 0 }))
}

/// Counts the samples of a stream that does not state their number.
fn counted(reader: &mut dyn FormatReader, track: u32) -> Result<u64, Problem> {
    let mut frames = 0u64;
    while let Some(packet) = reader.next_packet()? {
        if packet.track_id == track {
            frames = frames.saturating_add(packet.dur.get());
        }
    }
    Ok(frames)
}

impl Ogg<'_> {
    fn wrong(&self, problem: &str) -> Error {
        damaged(NAME, self.place, problem)
    }
}

impl Stream for Ogg<'_> {
    fn seek(&mut self, frame: u64) -> Result<()> {
        self.at = frame;
        if frame <= self.warm {
            return Ok(());
        }
        let ts = Timestamp::new((frame - self.warm) as i64);
        let to = SeekTo::Timestamp { ts, track_id: self.track };
        self.reader.seek(SeekMode::Accurate, to).map_err(|problem| {
            let problem = described(&problem);
            self.wrong(&format!("sample {} cannot be found: {problem}", with_separators(frame)))
        })?;
        self.decoder.reset();
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
        let place = self.place;
        let decoded = self.decoder.decode(&packet).map_err(|problem| {
            damaged(NAME, place, &format!("sample {shown} of {all} cannot be decoded: {}", described(&problem)))
        })?;
        if decoded.num_planes() != self.channels {
            let planes = decoded.num_planes();
            return Err(self.wrong(&format!("it changes from {} to {planes} channels", self.channels)));
        }
        let frames = decoded.frames() as u64;
        // Vorbis packets before the start have negative times. The decoder removes the samples of these packets.
        let start = start.max(0) as u64;
        if start > self.at && frames > 0 {
            let start = with_separators(start);
            return Err(self.wrong(&format!("samples {shown} to {start} are missing")));
        }
        let from = self.at.saturating_sub(start).min(frames);
        let until = self.frames.saturating_sub(start).min(frames).max(from);
        let range = from as usize..until as usize;
        match decoded {
            GenericAudioBufferRef::F32(decoded) => append(decoded, range, planes),
            GenericAudioBufferRef::S32(decoded) => scaled(decoded, range, planes),
            _ => return Err(Error::bug("the Ogg decoder returned samples of an unexpected type")),
        }
        self.at = self.at.max(start + until);
        Ok(true)
    }
}
