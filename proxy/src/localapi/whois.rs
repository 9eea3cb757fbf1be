//! Who is behind an address: the answer to `whois`.

use serde::Deserialize;

use super::{
    node::{CapMap, Node},
    nullable::{items, lists, nullable},
};

/// A node, its user, and what it may do to us.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "PascalCase")]
pub struct WhoIs {
    /// The node that has the address.
    #[serde(deserialize_with = "nullable")]
    pub node: Node,
    /// Its user; of a tagged node, one that stands for tagged devices.
    #[serde(deserialize_with = "nullable")]
    pub user_profile: UserProfile,
    /// What the tailnet's grants give the node on this one.
    #[serde(deserialize_with = "lists")]
    pub cap_map: CapMap,
}

/// A user of the tailnet.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "PascalCase")]
pub struct UserProfile {
    /// The number that nodes name their user by.
    #[serde(rename = "ID")]
    pub id: i64,
    /// Such as `alice@example.com`.
    pub login_name: String,
    /// Such as `Alice Smith`.
    pub display_name: String,
    /// Where a picture is to be had; may be empty.
    #[serde(rename = "ProfilePicURL")]
    pub profile_pic_url: String,
    /// The groups that the control server reports to this node.
    #[serde(deserialize_with = "items")]
    pub groups: Vec<String>,
}
