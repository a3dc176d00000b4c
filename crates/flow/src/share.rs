// SPDX-License-Identifier: Apache-2.0
//! Which node moves which object. Every node computes the same plan from the same manifest, so none needs to be told.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use penstock_types::{Error, Result};

use crate::manifest::Manifest;

/// A division of a manifest's objects among nodes: disjoint, complete, and the same whatever order the listing had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharePlan {
    shares: Vec<Vec<usize>>,
    loads: Vec<u64>,
}

impl SharePlan {
    /// Longest first by stored bytes, each to the node with the least bytes so far (ties: fewest objects, then lowest
    /// number). At most 4/3 of the best plan (Graham 1969); within 1 % of even where objects are many.
    pub fn new(manifest: &Manifest, nodes: u32) -> Result<Self> {
        if nodes == 0 {
            return Err(Error::config("--nodes", "0 nodes can move nothing"));
        }
        let objects = &manifest.objects;
        let mut order: Vec<usize> = (0..objects.len()).collect();
        order.sort_by(|&a, &b| {
            (Reverse(objects[a].size), &objects[a].key).cmp(&(Reverse(objects[b].size), &objects[b].key))
        });
        let mut shares = vec![Vec::new(); nodes as usize];
        let mut loads = vec![0u64; nodes as usize];
        let mut least: BinaryHeap<_> = (0..nodes as usize).map(|node| Reverse((0u64, 0usize, node))).collect();
        for at in order {
            let Some(Reverse((load, count, node))) = least.pop() else { break };
            let load = load.saturating_add(objects[at].size);
            shares[node].push(at);
            loads[node] = load;
            least.push(Reverse((load, count + 1, node)));
        }
        shares.iter_mut().for_each(|share| share.sort_unstable());
        Ok(Self { shares, loads })
    }

    /// Places in the manifest's list of the objects of one node, ascending; empty where there are fewer objects than
    /// nodes.
    pub fn share(&self, node: u32) -> &[usize] {
        self.shares.get(node as usize).map_or(&[], Vec::as_slice)
    }

    /// Stored bytes of every node's share.
    pub fn loads(&self) -> &[u64] {
        &self.loads
    }
}

#[cfg(test)]
mod tests {
    use penstock_types::Key;
    use proptest::prelude::*;

    use super::*;
    use crate::manifest::Entry;

    fn manifest(sizes: &[u64]) -> Manifest {
        let objects =
            sizes.iter().enumerate().map(|(at, &size)| Entry::new(Key::from(format!("k{at:05}").as_str()), size));
        Manifest::new("memory://m/".into(), objects.collect())
    }

    proptest! {
        #[test]
        fn prop_shares_are_disjoint_and_complete(sizes in prop::collection::vec(0u64..1 << 40, 0..200), nodes in 1u32..40) {
            let plan = SharePlan::new(&manifest(&sizes), nodes).unwrap();
            let mut seen: Vec<usize> = (0..nodes).flat_map(|node| plan.share(node).to_vec()).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..sizes.len()).collect::<Vec<_>>());
            prop_assert_eq!(plan.loads().iter().sum::<u64>(), sizes.iter().sum::<u64>());
        }

        #[test]
        fn prop_shares_ignore_the_listing_order(sizes in prop::collection::vec(0u64..1000, 1..100), nodes in 1u32..9, seed: u64) {
            let listed = manifest(&sizes);
            let mut shuffled = listed.clone();
            let mut state = seed | 1;
            for at in (1..shuffled.objects.len()).rev() {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                shuffled.objects.swap(at, (state >> 33) as usize % (at + 1));
            }
            let (a, b) = (SharePlan::new(&listed, nodes).unwrap(), SharePlan::new(&shuffled, nodes).unwrap());
            for node in 0..nodes {
                let keys = |m: &Manifest, p: &SharePlan| {
                    let mut keys: Vec<_> = p.share(node).iter().map(|&at| m.objects[at].key.clone()).collect();
                    keys.sort();
                    keys
                };
                prop_assert_eq!(keys(&listed, &a), keys(&shuffled, &b));
            }
        }
    }

    /// Sizes of a lognormal with sigma 1 and median 1 MB, by Box-Muller over splitmix64.
    fn lognormal(count: usize, seed: u64) -> Vec<u64> {
        let mut state = seed;
        let mut uniform = || {
            // splitmix64
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = state;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (((mixed ^ (mixed >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        };
        (0..count)
            .map(|_| {
                let (a, b) = (uniform(), uniform());
                let normal = (-2.0 * a.ln()).sqrt() * (2.0 * std::f64::consts::PI * b).cos();
                (1e6 * normal.exp()) as u64
            })
            .collect()
    }

    #[test]
    fn shares_of_lognormal_sizes_are_within_two_percent_of_even() {
        for seed in 1..=20 {
            let sizes = lognormal(1024, seed);
            let plan = SharePlan::new(&manifest(&sizes), 32).unwrap();
            let mean = sizes.iter().sum::<u64>() as f64 / 32.0;
            let worst = *plan.loads().iter().max().unwrap() as f64 / mean;
            assert!(worst <= 1.02, "seed {seed}: max/mean {worst:.4}");
        }
    }

    #[test]
    fn shares_of_fewer_objects_than_nodes_leave_some_empty() {
        let plan = SharePlan::new(&manifest(&[5, 7]), 4).unwrap();
        assert_eq!(
            (plan.share(0), plan.share(1), plan.share(2), plan.share(9)),
            (&[1][..], &[0][..], &[][..], &[][..])
        );
        assert!(SharePlan::new(&manifest(&[1]), 0).is_err());
    }

    #[test]
    fn shares_of_empty_objects_are_spread_by_count() {
        let plan = SharePlan::new(&manifest(&[0; 9]), 3).unwrap();
        assert!((0..3).all(|node| plan.share(node).len() == 3));
    }
}
