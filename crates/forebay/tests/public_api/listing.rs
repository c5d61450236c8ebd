//! Walks all items that a user of the crate can name, from `lib.rs` down.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Attribute, Fields, Item, TraitItem, Visibility, visit::Visit};

use crate::{
    foreign::ForeignTypes,
    render::{line, signature},
    tree::{Definition, Krate, Target, attributes, defined_name},
};

/// Macros of std that define nothing a user of the crate can name.
const NO_ITEMS: &[&str] = &["thread_local", "assert", "compile_error"];

pub(crate) struct Listing<'a> {
    pub(crate) krate: &'a Krate,
    /// `PATH  SIGNATURE`, sorted, so that the lines of one item stand together.
    pub(crate) lines: BTreeSet<String>,
    /// Where a type of another crate is part of a signature.
    pub(crate) foreign: BTreeSet<String>,
    /// Enums, and structs with public fields, that are not `#[non_exhaustive]`.
    pub(crate) exhaustive: BTreeSet<String>,
    /// Every public path of every reachable item, with the conditions of its `pub use`.
    reachable: BTreeMap<Definition, BTreeSet<(usize, String, String)>>,
}

impl<'a> Listing<'a> {
    pub(crate) fn of(krate: &'a Krate) -> Listing<'a> {
        let mut listing = Listing {
            krate,
            lines: BTreeSet::new(),
            foreign: BTreeSet::new(),
            exhaustive: BTreeSet::new(),
            reachable: BTreeMap::new(),
        };
        listing.reach_module(&[], &krate.name, "", &mut BTreeSet::new());
        listing.describe_all();
        listing.add_impls();
        listing.add_macros();
        listing
    }

    /// Returns the shortest public path of an item, if it has one.
    pub(crate) fn public_path(&self, definition: &Definition) -> Option<&str> {
        self.reachable.get(definition)?.first().map(|(_, path, _)| path.as_str())
    }

    fn reach(&mut self, definition: Definition, path: String, conditions: &str) {
        let length = path.matches("::").count();
        self.reachable.entry(definition).or_default().insert((length, path, conditions.to_owned()));
    }

    /// Records every public item in `module`, which users know as `public_path`.
    fn reach_module(
        &mut self,
        module: &[String],
        public_path: &str,
        conditions: &str,
        visited: &mut BTreeSet<(Vec<String>, String)>,
    ) {
        let krate = self.krate;
        if !visited.insert((module.to_vec(), public_path.to_owned())) {
            return;
        }
        let Some(here) = krate.modules.get(module) else { return };
        for item in &here.items {
            if let Item::Mod(child) = item {
                if matches!(child.vis, Visibility::Public(_)) {
                    let path = format!("{public_path}::{}", child.ident);
                    let child_conditions = [conditions, &shown_attributes(&child.attrs)].concat();
                    self.lines.insert(format!("{path}  {child_conditions}mod {}", child.ident));
                    // Nothing of a hidden module is promised.
                    if !child_conditions.contains("hidden") {
                        self.reach_module(&[module, &[child.ident.to_string()]].concat(), &path, "", visited);
                    }
                }
            } else if let Some(name) = defined_name(item).filter(|_| is_public(item)) {
                self.reach((module.to_vec(), name.clone()), format!("{public_path}::{name}"), conditions);
            }
        }
        for import in here.imports.iter().filter(|import| import.public) {
            let conditions = [conditions, &shown_attributes(&import.attributes)].concat();
            let target = krate.resolve(module, &import.path);
            match (target, &import.name) {
                (Some(Target::Item(definition)), Some(name)) => {
                    self.reach(definition, format!("{public_path}::{name}"), &conditions);
                }
                (Some(Target::Module(inner)), Some(name)) => {
                    let path = format!("{public_path}::{name}");
                    self.lines.insert(format!("{path}  {conditions}mod {name}"));
                    if !conditions.contains("hidden") {
                        self.reach_module(&inner, &path, "", visited);
                    }
                }
                (Some(Target::Module(inner)), None) => {
                    self.reach_module(&inner, public_path, &conditions, visited)
                }
                (Some(Target::External(name)), import_name) => {
                    let path = format!("{public_path}::{}", import_name.as_deref().unwrap_or("*"));
                    self.lines.insert(format!("{path}  {conditions}use {}", import.path.join("::")));
                    if !crate::ALLOWED_TYPES.contains(&name.as_str()) {
                        self.foreign.insert(format!("{path}: {name} is re-exported"));
                    }
                }
                // Of std, or all variants of an enum of ours.
                (None | Some(Target::Item(_)), import_name) => {
                    let path = format!("{public_path}::{}", import_name.as_deref().unwrap_or("*"));
                    self.lines.insert(format!("{path}  {conditions}use {}", import.path.join("::")));
                }
            }
        }
    }

    fn describe_all(&mut self) {
        let krate = self.krate;
        for (definition, paths) in self.reachable.clone() {
            let mut paths = paths.into_iter();
            let Some((_, main, conditions)) = paths.next() else { continue };
            for (_, alias, conditions) in paths {
                self.lines.insert(format!("{alias}  {conditions}is {main}"));
            }
            let items =
                krate.modules.get(&definition.0).map(|module| module.items.as_slice()).unwrap_or_default();
            for item in items.iter().filter(|item| defined_name(item).as_ref() == Some(&definition.1)) {
                self.describe(item, &definition.0, &main, &conditions);
            }
        }
    }

    fn describe(&mut self, item: &Item, module: &[String], path: &str, conditions: &str) {
        let head = [conditions, &shown_attributes(attributes(item))].concat();
        let text = match item {
            Item::Fn(item) => {
                self.check(path, module, |types| types.visit_signature(&item.sig));
                signature(&item.sig)
            }
            Item::Const(item) => {
                self.check(path, module, |types| types.visit_type(&item.ty));
                format!("const {}: {}", item.ident, line(&item.ty))
            }
            Item::Static(item) => {
                self.check(path, module, |types| types.visit_type(&item.ty));
                format!("static {}: {}", item.ident, line(&item.ty))
            }
            Item::Type(item) => {
                self.check(path, module, |types| types.visit_type(&item.ty));
                format!("type {}{} = {}", item.ident, line(&item.generics), line(&item.ty))
            }
            Item::Struct(item) => {
                self.check(path, module, |types| types.visit_generics(&item.generics));
                let open = self.add_fields(&item.fields, module, path, false);
                if open && !head.contains("non_exhaustive") {
                    self.exhaustive.insert(path.to_owned());
                }
                let fields = match &item.fields {
                    Fields::Named(_) => " { .. }",
                    Fields::Unnamed(_) => "(..)",
                    Fields::Unit => "",
                };
                format!("struct {}{}{fields}", item.ident, line(&item.generics))
            }
            Item::Enum(item) => {
                self.check(path, module, |types| types.visit_generics(&item.generics));
                for variant in &item.variants {
                    let variant_path = format!("{path}::{}", variant.ident);
                    self.check(&variant_path, module, |types| types.visit_fields(&variant.fields));
                    let shown = shown_attributes(&variant.attrs);
                    let mut variant = variant.clone();
                    variant.attrs.clear();
                    variant.fields.iter_mut().for_each(|field| field.attrs.clear());
                    match &mut variant.fields {
                        Fields::Named(fields) => drop(fields.named.pop_punct()),
                        Fields::Unnamed(fields) => drop(fields.unnamed.pop_punct()),
                        Fields::Unit => {}
                    }
                    self.lines.insert(format!("{variant_path}  {shown}variant {}", line(&variant)));
                }
                if !head.contains("non_exhaustive") {
                    self.exhaustive.insert(path.to_owned());
                }
                format!("enum {}{}", item.ident, line(&item.generics))
            }
            Item::Union(item) => format!("union {}{} {{ .. }}", item.ident, line(&item.generics)),
            Item::Trait(item) => {
                self.check(path, module, |types| {
                    types.visit_generics(&item.generics);
                    item.supertraits.iter().for_each(|bound| types.visit_type_param_bound(bound));
                });
                item.items.iter().for_each(|part| self.add_trait_item(part, module, path));
                let supertraits = line(&item.supertraits);
                let colon = if supertraits.is_empty() { "" } else { ": " };
                format!("trait {}{}{colon}{supertraits}", item.ident, line(&item.generics))
            }
            Item::Macro(item) => format!("macro_rules {}", line(&item.mac.tokens)),
            _ => return,
        };
        self.add_derives(item, module, path);
        self.lines.insert(format!("{path}  {head}{text}"));
    }

    /// Lists public fields; returns whether any exists.
    fn add_fields(&mut self, fields: &Fields, module: &[String], path: &str, mut open: bool) -> bool {
        for (index, field) in fields.iter().enumerate() {
            if matches!(field.vis, Visibility::Public(_)) {
                let name = field.ident.as_ref().map_or_else(|| index.to_string(), ToString::to_string);
                let field_path = format!("{path}::{name}");
                self.check(&field_path, module, |types| types.visit_type(&field.ty));
                let shown = shown_attributes(&field.attrs);
                self.lines.insert(format!("{field_path}  {shown}field {name}: {}", line(&field.ty)));
                open = true;
            }
        }
        open
    }

    fn add_trait_item(&mut self, item: &TraitItem, module: &[String], path: &str) {
        let (name, text) = match item {
            TraitItem::Fn(method) => {
                let body = if method.default.is_some() { " { .. }" } else { "" };
                (method.sig.ident.to_string(), format!("{}{body}", signature(&method.sig)))
            }
            TraitItem::Type(part) => (part.ident.to_string(), line(part)),
            TraitItem::Const(part) => {
                (part.ident.to_string(), format!("const {}: {}", part.ident, line(&part.ty)))
            }
            _ => return,
        };
        let path = format!("{path}::{name}");
        self.check(&path, module, |types| types.visit_trait_item(item));
        self.lines.insert(format!("{path}  {text}"));
    }

    /// Lists macros that write items here: their arguments, and their bodies.
    fn add_macros(&mut self) {
        let krate = self.krate;
        for (module, here) in &krate.modules {
            for item in &here.items {
                let Item::Macro(used) = item else { continue };
                let Some(name) = used.mac.path.segments.last().map(|segment| segment.ident.to_string())
                else {
                    continue;
                };
                if used.ident.is_some() || NO_ITEMS.contains(&name.as_str()) {
                    continue;
                }
                let place = [vec![krate.name.clone()], module.clone()].concat().join("::");
                self.lines.insert(format!("macro {name}  used in {place}: {}", line(&used.mac.tokens)));
                let definitions = krate.modules.values().flat_map(|module| &module.items);
                for definition in definitions.filter(|item| defined_name(item).as_ref() == Some(&name)) {
                    if let Item::Macro(definition) = definition {
                        self.lines.insert(format!("macro {name}  writes {}", line(&definition.mac.tokens)));
                    }
                }
            }
        }
    }

    /// Notes the crates whose types `visit` meets, seen from `module`, as found at `path`.
    pub(crate) fn check(&mut self, path: &str, module: &[String], visit: impl FnOnce(&mut ForeignTypes<'_>)) {
        let mut types = ForeignTypes::in_module(self.krate, module);
        visit(&mut types);
        let found = types.found;
        self.foreign.extend(found.into_iter().map(|krate| format!("{path}: {krate}")));
    }
}

/// Returns the attributes that users of an item have to know, each followed by a space.
pub(crate) fn shown_attributes(attributes: &[Attribute]) -> String {
    attributes
        .iter()
        .filter(|attribute| {
            ["cfg", "non_exhaustive", "deprecated", "repr", "must_use"]
                .iter()
                .any(|name| attribute.path().is_ident(name))
                || attribute.path().is_ident("doc") && line(attribute).contains("hidden")
        })
        .map(|attribute| {
            if attribute.path().is_ident("must_use") {
                "#[must_use] ".to_owned()
            } else {
                format!("{} ", line(attribute))
            }
        })
        .collect()
}

fn is_public(item: &Item) -> bool {
    let visibility = match item {
        Item::Const(item) => &item.vis,
        Item::Enum(item) => &item.vis,
        Item::Fn(item) => &item.vis,
        Item::Static(item) => &item.vis,
        Item::Struct(item) => &item.vis,
        Item::Trait(item) => &item.vis,
        Item::Type(item) => &item.vis,
        Item::Union(item) => &item.vis,
        Item::Macro(item) => {
            return item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export"));
        }
        _ => return false,
    };
    matches!(visibility, Visibility::Public(_))
}
