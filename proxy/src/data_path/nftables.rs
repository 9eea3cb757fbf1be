//! The nftables data path.
