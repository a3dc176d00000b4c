// SPDX-License-Identifier: Apache-2.0
//! Share plan: assigns each object to a node. Every node computes the same plan from the same manifest, without
//! communication.
//!
//! Balances the stored bytes (read from the source) in proportion to the capacity of the nodes. Also balances the
//! written bytes (after decompression or compression), if the stored bytes stay balanced. A rule over object names can
//! replace this balancing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::str::FromStr;

use penstock_codec::Codec;
use penstock_types::{Error, Result};

use crate::glob::Glob;
use crate::key_names::last_component;
use crate::manifest::{Entry, Manifest};

/// Maximum number of nodes per job. The number is limited because a plan stores a number per node.
const MAX_NODES: u32 = 1 << 20;

/// Limit for balancing written bytes: the fullest node may get at most this multiple of its even share of stored bytes.
const EVEN: f64 = 1.02;

/// Rule that divides objects among nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ShareBy {
    /// Balances the stored bytes, and the cost of transferring them. Assigns the largest objects first.
    #[default]
    Bytes,
    /// Divides objects by a number in their names.
    Name(NameRule),
}

/// Rule `name:PATTERN`, where `{}` in the pattern matches a run of digits. Objects with the same number form a group.
/// The groups are sorted by number, and each node gets a contiguous run of groups. For example, of 64 groups, node 0 of
/// 16 gets the first four.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameRule {
    head: Glob,
    tail: Glob,
    whole: bool,
}

impl NameRule {
    /// Returns the group number in a key. If several runs of digits match, the last one counts.
    pub fn group(&self, key: &[u8]) -> Option<u64> {
        let name = if self.whole { key } else { last_component(key) };
        let mut end = name.len();
        loop {
            end = name[..end].iter().rposition(u8::is_ascii_digit)? + 1;
            let start = name[..end].iter().rposition(|byte| !byte.is_ascii_digit()).map_or(0, |at| at + 1);
            if self.head.matches(&name[..start]) && self.tail.matches(&name[end..]) {
                let digits = &name[start..end];
                let significant = digits.iter().position(|digit| *digit != b'0').map_or(&b"0"[..], |at| &digits[at..]);
                return std::str::from_utf8(significant).ok()?.parse().ok();
            }
            end = start;
        }
    }
}

impl FromStr for ShareBy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let no = |why: &str| Err(Error::config("--share-by", format!("`{text}` {why}")));
        if text == "bytes" {
            return Ok(Self::Bytes);
        }
        let Some(pattern) = text.strip_prefix("name:") else {
            return no("is neither `bytes` nor `name:PATTERN`, such as name:'*_{}.tfrecord*'");
        };
        let Some((head, tail)) = pattern.split_once("{}") else {
            return no("has no `{}` for the group's number");
        };
        if tail.contains("{}") {
            return no("has two `{}`");
        }
        let glob = |text: &str| Glob::new(text.as_bytes());
        Ok(Self::Name(NameRule { head: glob(head), tail: glob(tail), whole: pattern.contains('/') }))
    }
}

/// Relative capacities of the nodes, such as `1,1,2,2`. Empty if all are equal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Weights(Vec<u64>);

impl Weights {
    /// Weight of a node, in thousandths.
    fn of(&self, node: usize) -> u64 {
        self.0.get(node).copied().unwrap_or(1000)
    }

    /// Fraction of the whole that one node gets.
    pub fn part(&self, node: u32, nodes: u32) -> f64 {
        let all: u64 = (0..nodes as usize).map(|node| self.of(node)).sum();
        self.of(node as usize) as f64 / all.max(1) as f64
    }

    fn check(&self, nodes: u32) -> Result<()> {
        match self.0.len() {
            0 => Ok(()),
            count if count == nodes as usize => Ok(()),
            count => Err(Error::config("--weights", format!("got {count} weights, but the job has {nodes} nodes"))),
        }
    }
}

/// Parses numbers separated by commas or white space.
impl FromStr for Weights {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let weights = text
            .split(|c: char| c == ',' || c.is_whitespace())
            .filter(|word| !word.is_empty())
            .map(|word| match word.parse::<f64>() {
                Ok(weight) if (0.001..=1e6).contains(&weight) => Ok((weight * 1000.0).round() as u64),
                _ => Err(Error::config("--weights", format!("must be numbers from 0.001 to 1,000,000 (got `{word}`)"))),
            })
            .collect::<Result<Vec<u64>>>()?;
        match weights.is_empty() {
            true => Err(Error::config("--weights", "at least one number is required")),
            false => Ok(Self(weights)),
        }
    }
}

/// Settings for dividing objects among nodes, parsed from user input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Division {
    /// Rule that divides the objects.
    pub by: ShareBy,
    /// Weight of each node; empty if all are equal.
    pub weights: Weights,
    /// True if the stage decompresses compressed objects.
    pub decompress: bool,
}

/// Bytes read plus bytes written for one object. If the decompressed size is unknown, a ratio typical of the codec on
/// training data is assumed. For comparison, measured ratios are 4.6 for the gzip-compressed volumes of study A, about
/// 5 for JSON and CSV, and 1 for dense data.
pub fn cost(entry: &Entry, decompress: bool) -> u64 {
    let out = match (decompress, entry.codec, entry.decompressed_size()) {
        (false, ..) | (true, Codec::None, _) => entry.size,
        (true, _, Some(size)) => size,
        (true, Codec::Gzip | Codec::Zstd, None) => entry.size.saturating_mul(4),
        (true, Codec::Lz4, None) => entry.size.saturating_mul(2),
    };
    entry.size.saturating_add(out)
}

/// Assignment of a manifest's objects to nodes. Each object belongs to exactly one node. The assignment does not depend
/// on the order of the listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharePlan {
    owner: Vec<u32>,
    loads: Vec<u64>,
    costs: Vec<u64>,
}

impl SharePlan {
    /// Divides the objects so that each node gets about the same number of stored bytes.
    pub fn new(manifest: &Manifest, nodes: u32) -> Result<Self> {
        Self::divide(manifest, nodes, &Division::default())
    }

    /// Assigns the largest objects first, each to the node that would be least full with this object. Ties go to the
    /// node with the fewest objects, then to the node with the lowest number. The fullest node gets at most 4/3 of the
    /// optimum (Graham 1969). With many objects, the loads of all nodes are within 1 % of the mean.
    ///
    /// If decompression ratios differ, each kind of object is assigned separately, so that written bytes are even too.
    /// If a node would then get more than 2 % above its share of stored bytes, all kinds are assigned together.
    pub fn divide(manifest: &Manifest, nodes: u32, division: &Division) -> Result<Self> {
        if nodes == 0 || nodes > MAX_NODES {
            return Err(Error::config("--nodes", format!("must be 1 to {MAX_NODES} (got {nodes})")));
        }
        let objects = &manifest.objects;
        if u32::try_from(objects.len()).is_err() {
            return Err(Error::Unsupported {
                what: format!("dividing {} objects", objects.len()),
                by: "this version (at most 4,294,967,295 objects)".to_owned(),
            });
        }
        division.weights.check(nodes)?;
        let mut order: Vec<u32> = (0..objects.len() as u32).collect();
        if !objects.is_sorted_by(|a, b| a.key <= b.key) {
            order.sort_by(|&a, &b| objects[a as usize].key.cmp(&objects[b as usize].key));
        }
        let mut deal = Balancer::new(objects, nodes, &division.weights);
        if let ShareBy::Name(rule) = &division.by {
            order = deal.by_name(&order, rule)?;
        }
        order.sort_by_key(|&at| Reverse(objects[at as usize].size)); // stable: objects of equal size stay in key order
        if has_kinds(objects, division.decompress) {
            let mut dealt = deal.clone();
            let mut apart = vec![Vec::new(); MAX_KINDS];
            order.iter().for_each(|&at| apart[kind_of(&objects[at as usize], division.decompress)].push(at));
            // Kinds with the smallest objects come last, because small objects even out the loads.
            apart.sort_by_key(|kind| Reverse(kind.first().map(|&at| objects[at as usize].size)));
            apart.iter().for_each(|kind| dealt.out(kind));
            let mut together = deal;
            together.out(&order);
            deal = if dealt.fullest() <= EVEN.max(together.fullest()) { dealt } else { together };
        } else {
            deal.out(&order);
        }
        let mut plan = Self { owner: deal.owner, loads: deal.loads, costs: Vec::new() };
        plan.costs = plan.sums(|at| cost(&objects[at], division.decompress));
        Ok(plan)
    }

    /// Manifest indices of one node's objects, ascending. Some nodes get no object if there are fewer objects than
    /// nodes.
    pub fn share(&self, node: u32) -> Vec<usize> {
        self.owner.iter().enumerate().filter(|(_, owner)| **owner == node).map(|(at, _)| at).collect()
    }

    /// Stored bytes of each node's objects.
    pub fn loads(&self) -> &[u64] {
        &self.loads
    }

    /// Bytes read and written for each node's objects; estimated if a decompressed size is unknown.
    pub fn costs(&self) -> &[u64] {
        &self.costs
    }

    /// Sums the value `of(index)` over the objects of each node.
    pub fn sums(&self, of: impl Fn(usize) -> u64) -> Vec<u64> {
        let mut sums = vec![0u64; self.loads.len()];
        for (at, &node) in self.owner.iter().enumerate() {
            sums[node as usize] = sums[node as usize].saturating_add(of(at));
        }
        sums
    }
}

/// Number of object kinds. A kind is a class of cost per stored byte.
const MAX_KINDS: usize = 257;

/// Returns the kind of an object: its cost per stored byte in steps of 0.25, up to 64.
fn kind_of(entry: &Entry, decompress: bool) -> usize {
    match entry.size {
        0 => 0,
        size => (cost(entry, decompress) as f64 / size as f64 * 4.0).round().min(MAX_KINDS as f64 - 1.0) as usize,
    }
}

fn has_kinds(objects: &[Entry], decompress: bool) -> bool {
    let mut kinds = objects.iter().filter(|entry| entry.size > 0).map(|entry| kind_of(entry, decompress));
    let first = kinds.next();
    decompress && kinds.any(|kind| Some(kind) != first)
}

/// A share plan under construction.
#[derive(Clone)]
struct Balancer<'a> {
    objects: &'a [Entry],
    weights: &'a Weights,
    owner: Vec<u32>,
    loads: Vec<u64>,
    counts: Vec<usize>,
}

/// Load of a node: stored bytes per thousandth of weight. A float is exact enough, because a job has far fewer than
/// 2^53 bytes.
#[derive(PartialEq)]
struct Fullness(f64);

impl Eq for Fullness {}

impl PartialOrd for Fullness {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Fullness {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl<'a> Balancer<'a> {
    fn new(objects: &'a [Entry], nodes: u32, weights: &'a Weights) -> Self {
        let nodes = nodes as usize;
        Self { objects, weights, owner: vec![0; objects.len()], loads: vec![0; nodes], counts: vec![0; nodes] }
    }

    fn give(&mut self, at: u32, node: usize) {
        self.owner[at as usize] = node as u32;
        self.loads[node] = self.loads[node].saturating_add(self.objects[at as usize].size);
        self.counts[node] += 1;
    }

    /// Assigns the objects of `order` (largest first) to nodes, which may already have objects.
    fn out(&mut self, order: &[u32]) {
        // Nodes of equal weight are compared by their current load. Nodes of different weights are compared by their
        // load including this object.
        let mut classes: Vec<u64> = (0..self.loads.len()).map(|node| self.weights.of(node)).collect();
        classes.sort_unstable();
        classes.dedup();
        let mut heaps: Vec<(u64, BinaryHeap<_>)> = classes
            .into_iter()
            .map(|weight| {
                let nodes = (0..self.loads.len()).filter(|&node| self.weights.of(node) == weight);
                (weight, nodes.map(|node| Reverse((self.loads[node], self.counts[node], node))).collect())
            })
            .collect();
        for &at in order {
            let size = self.objects[at as usize].size;
            let best = (0..heaps.len()).filter_map(|class| {
                let Reverse((load, count, node)) = heaps[class].1.peek()?;
                let full = Fullness(load.saturating_add(size) as f64 / heaps[class].0 as f64);
                Some((full, *count, *node, class))
            });
            let Some((_, _, node, class)) = best.min() else { return };
            heaps[class].1.pop();
            self.give(at, node);
            heaps[class].1.push(Reverse((self.loads[node], self.counts[node], node)));
        }
    }

    /// Assigns the objects that match the name rule, and returns the others.
    fn by_name(&mut self, order: &[u32], rule: &NameRule) -> Result<Vec<u32>> {
        let mut taken: Vec<(u64, u32)> = Vec::new();
        let mut rest = Vec::new();
        for &at in order {
            match rule.group(self.objects[at as usize].key.as_bytes()) {
                Some(group) => taken.push((group, at)),
                None => rest.push(at),
            }
        }
        if taken.is_empty() && !rest.is_empty() {
            let first = &self.objects[rest[0] as usize].key;
            return Err(Error::config(
                "--share-by",
                format!("the pattern matches none of the {} keys, such as `{first}`", rest.len()),
            ));
        }
        let mut groups: Vec<u64> = taken.iter().map(|(group, _)| *group).collect();
        groups.sort_unstable();
        groups.dedup();
        let all: u64 = (0..self.loads.len()).map(|node| self.weights.of(node)).sum();
        // Each node gets a contiguous run of the sorted groups, in proportion to its weight.
        let (mut node, mut until) = (0, self.weights.of(0));
        let mut node_of = Vec::with_capacity(groups.len());
        for place in 0..groups.len() as u128 {
            while place * u128::from(all) >= u128::from(until) * groups.len() as u128 && node + 1 < self.loads.len() {
                node += 1;
                until += self.weights.of(node);
            }
            node_of.push(node);
        }
        for (group, at) in taken {
            let place = groups.partition_point(|known| *known < group);
            self.give(at, node_of[place]);
        }
        Ok(rest)
    }

    /// Maximum over all nodes of the node's stored bytes divided by its even share.
    fn fullest(&self) -> f64 {
        let bytes: f64 = self.loads.iter().map(|load| *load as f64).sum();
        if bytes == 0.0 {
            return 1.0;
        }
        let nodes = self.loads.len() as u32;
        let part = |node: usize| self.weights.part(node as u32, nodes) * bytes;
        (0..self.loads.len()).map(|node| self.loads[node] as f64 / part(node)).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests;
