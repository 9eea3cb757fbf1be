//! The kinds of `tailscale.com/v1alpha1`, one a file: types and documentation, no logic.
