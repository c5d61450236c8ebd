//! Finds types of other crates in public signatures.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};

use crate::{
    ALLOWED_TYPES, OWN,
    tree::{Krate, Target},
};

/// The crates outside std and the allowed crates that the visited syntax mentions, as seen from one module.
pub(crate) struct ForeignTypes<'a> {
    krate: &'a Krate,
    module: &'a [String],
    pub(crate) found: BTreeSet<String>,
}

impl<'a> ForeignTypes<'a> {
    pub(crate) fn in_module(krate: &'a Krate, module: &'a [String]) -> Self {
        ForeignTypes { krate, module, found: BTreeSet::new() }
    }

    pub(crate) fn check_path(&mut self, path: &syn::Path) {
        let segments = segments(path);
        if let Some(Target::External(krate)) = self.krate.resolve(self.module, &segments)
            && !ALLOWED_TYPES.contains(&krate.as_str())
            && !OWN.contains(&(self.krate.name.as_str(), krate.as_str()))
        {
            self.found.insert(krate);
        }
    }
}

impl<'ast> Visit<'ast> for ForeignTypes<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.check_path(path);
        visit::visit_path(self, path);
    }

    // Attributes are not part of a signature.
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

pub(crate) fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}
