//! The crate's modules as parsed sources, and the meaning of a path in each of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::parse::ParseStream;
use syn::{Attribute, Item, ItemImpl, Type, UseTree, Visibility};

/// A module's path from the crate's root, without the crate's name.
pub(crate) type ModulePath = Vec<String>;

/// Where an item is defined: its module and its name.
pub(crate) type Definition = (ModulePath, String);

/// The target of a path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    Item(Definition),
    Module(ModulePath),
    /// An item of another crate; the crate's name.
    External(String),
}

/// One `use`, flattened: `use a::{b as c}` is `c` for `a::b`.
pub(crate) struct Import {
    /// `None` for `use a::*`.
    pub(crate) name: Option<String>,
    pub(crate) path: Vec<String>,
    pub(crate) public: bool,
    pub(crate) attributes: Vec<Attribute>,
}

#[derive(Default)]
pub(crate) struct Module {
    pub(crate) items: Vec<Item>,
    pub(crate) imports: Vec<Import>,
}

pub(crate) struct Krate {
    pub(crate) name: String,
    pub(crate) modules: BTreeMap<ModulePath, Module>,
    /// Names of all normal dependencies as they appear in paths.
    pub(crate) dependencies: BTreeSet<String>,
}

impl Krate {
    pub(crate) fn load(name: &str, root: &Path, manifest: &Path) -> Result<Krate, String> {
        let manifest =
            fs::read_to_string(manifest).map_err(|error| format!("{}: {error}", manifest.display()))?;
        let mut krate =
            Krate { name: name.into(), modules: BTreeMap::new(), dependencies: dependencies(&manifest) };
        let folder = root.parent().ok_or("the root file lies in no folder")?;
        krate.load_file(root, folder, Vec::new())?;
        Ok(krate)
    }

    fn load_file(&mut self, file: &Path, folder: &Path, path: ModulePath) -> Result<(), String> {
        let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let parsed = syn::parse_file(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        self.add(parsed.items, folder, path)
    }

    /// Adds a module's items. `folder` is where the files of its child modules lie.
    fn add(&mut self, items: Vec<Item>, folder: &Path, path: ModulePath) -> Result<(), String> {
        for item in items {
            if only_for_tests(attributes(&item)) {
                continue;
            }
            if let Item::Mod(child) = &item {
                let name = child.ident.to_string();
                let child_path = [path.clone(), vec![name.clone()]].concat();
                match child.content.clone() {
                    Some((_, items)) => self.add(items, &folder.join(&name), child_path)?,
                    None => {
                        let file = module_file(folder, &name, &child.attrs)?;
                        self.load_file(&file, &folder.join(&name), child_path)?;
                    }
                }
            }
            let written = debug_impl(&item).map_err(|error| format!("{}: {error}", path.join("::")))?;
            let item = written.map_or(item, Item::Impl);
            let module = self.modules.entry(path.clone()).or_default();
            if let Item::Use(line) = &item {
                let mut found = Vec::new();
                flatten(&line.tree, Vec::new(), &mut found);
                let public = matches!(line.vis, Visibility::Public(_));
                module.imports.extend(found.into_iter().map(|(name, path)| Import {
                    name,
                    path,
                    public,
                    attributes: line.attrs.clone(),
                }));
            }
            module.items.push(item);
        }
        self.modules.entry(path).or_default();
        Ok(())
    }

    /// Returns the attributes of the modules that a module lies in, and its own: a `cfg` there holds for all
    /// items inside.
    pub(crate) fn attributes_around(&self, module: &[String]) -> Vec<Attribute> {
        (0..module.len())
            .filter_map(|depth| Some((&module[depth], self.modules.get(&module[..depth])?)))
            .flat_map(|(name, parent)| {
                parent
                    .items
                    .iter()
                    .filter(move |item| matches!(item, Item::Mod(child) if child.ident == name))
            })
            .flat_map(|child| attributes(child).to_vec())
            .collect()
    }

    /// Returns the meaning of `path` in `module`. `None`: a generic parameter, a name of the prelude, or
    /// something of std.
    pub(crate) fn resolve(&self, module: &[String], path: &[String]) -> Option<Target> {
        self.resolve_within(module, path, 16)
    }

    fn resolve_within(&self, module: &[String], path: &[String], depth: u32) -> Option<Target> {
        let depth = depth.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => return self.descend(Vec::new(), rest, depth),
            "self" => return self.descend(module.to_vec(), rest, depth),
            "super" => return self.resolve_from_parent(module, rest, depth),
            "std" | "core" | "alloc" => return None,
            _ => {}
        }
        self.lookup(module, path, depth)
            .or_else(|| self.dependencies.contains(first).then(|| Target::External(first.clone())))
    }

    fn resolve_from_parent(&self, module: &[String], rest: &[String], depth: u32) -> Option<Target> {
        let (_, parent) = module.split_last()?;
        match rest.first().map(String::as_str) {
            Some("super") => self.resolve_from_parent(parent, &rest[1..], depth),
            _ => self.descend(parent.to_vec(), rest, depth),
        }
    }

    fn descend(&self, module: ModulePath, rest: &[String], depth: u32) -> Option<Target> {
        if rest.is_empty() { Some(Target::Module(module)) } else { self.lookup(&module, rest, depth) }
    }

    /// Looks a path up among a module's own names: its items, its child modules, its imports.
    fn lookup(&self, module: &[String], path: &[String], depth: u32) -> Option<Target> {
        let depth = depth.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        let child = [module, std::slice::from_ref(first)].concat();
        if self.modules.contains_key(&child) {
            return self.descend(child, rest, depth);
        }
        let here = self.modules.get(module)?;
        if here.items.iter().any(|item| defined_name(item).is_some_and(|name| name == *first)) {
            return Some(Target::Item((module.to_vec(), first.clone())));
        }
        if let Some(import) = here.imports.iter().find(|import| import.name.as_ref() == Some(first)) {
            return match self.resolve_within(module, &import.path, depth)? {
                Target::Module(inner) => self.descend(inner, rest, depth),
                other => Some(other),
            };
        }
        here.imports.iter().filter(|import| import.name.is_none()).find_map(|import| {
            match self.resolve_within(module, &import.path, depth)? {
                Target::Module(inner) if inner != module => self.lookup(&inner, path, depth),
                // The names that a glob imports are unknown here; a name found nowhere else may be of that
                // crate.
                Target::External(krate) if rest.is_empty() && !in_prelude(first) => {
                    Some(Target::External(krate))
                }
                _ => None,
            }
        })
    }
}

/// Returns the impl that a use of `_debug_parts` writes.
fn debug_impl(item: &Item) -> syn::Result<Option<ItemImpl>> {
    let Item::Macro(used) = item else { return Ok(None) };
    if used.mac.path.segments.last().is_none_or(|last| last.ident != "_debug_parts") {
        return Ok(None);
    }
    let mut written = used.mac.parse_body_with(debug_of)?;
    written.attrs.clone_from(&used.attrs);
    Ok(Some(written))
}

/// Parses the parameters of a generic type, in brackets, the type, and the parts that it shows.
fn debug_of(input: ParseStream<'_>) -> syn::Result<ItemImpl> {
    let mut parameters = TokenStream::new();
    if input.peek(syn::token::Bracket) {
        let inside;
        syn::bracketed!(inside in input);
        parameters = inside.parse()?;
    }
    let of: Type = input.parse()?;
    let _parts: TokenStream = input.parse()?;
    Ok(syn::parse_quote!(impl<#parameters> std::fmt::Debug for #of {}))
}

/// Returns the name that an item defines, for those that signatures can mention or the crate can re-export.
pub(crate) fn defined_name(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Static(item) => item.ident.to_string(),
        Item::Struct(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        Item::Union(item) => item.ident.to_string(),
        Item::Macro(item) => item.ident.as_ref()?.to_string(),
        _ => return None,
    })
}

pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns whether attributes limit an item to tests: `#[cfg(test)]`, `#[cfg(all(test, ..))]` and
/// `#[cfg(doctest)]`, but not `#[cfg(not(test))]`.
pub(crate) fn only_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let text = attribute.meta.to_token_stream().to_string();
        let words: Vec<_> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        (words.contains(&"test") || words.contains(&"doctest")) && !words.contains(&"not")
    })
}

fn in_prelude(name: &str) -> bool {
    name.len() == 1
        || matches!(
            name,
            "Self"
                | "Vec"
                | "String"
                | "Option"
                | "Result"
                | "Box"
                | "Send"
                | "Sync"
                | "Sized"
                | "Fn"
                | "FnMut"
                | "FnOnce"
                | "Drop"
                | "Clone"
                | "Copy"
                | "Iterator"
                | "IntoIterator"
                | "Into"
                | "From"
                | "AsRef"
                | "Default"
                | "Eq"
                | "PartialEq"
                | "Ord"
                | "PartialOrd"
                | "Future"
                | "IntoFuture"
                | "ToOwned"
                | "ToString"
                | "bool"
                | "char"
                | "str"
                | "u8"
                | "u16"
                | "u32"
                | "u64"
                | "u128"
                | "usize"
                | "i8"
                | "i16"
                | "i32"
                | "i64"
                | "i128"
                | "isize"
                | "f32"
                | "f64"
        )
}

/// Returns the file of `mod name;`: `name.rs`, `name/mod.rs`, or the path of `#[path]`.
fn module_file(folder: &Path, name: &str, attributes: &[Attribute]) -> Result<PathBuf, String> {
    for attribute in attributes {
        if let syn::Meta::NameValue(pair) = &attribute.meta
            && pair.path.is_ident("path")
            && let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) = &pair.value
        {
            // Relative to the folder of the file that has the attribute: for `a.rs` that is above `a`.
            let above = folder.parent().unwrap_or(folder);
            let found = [folder, above].map(|folder| folder.join(path.value()));
            let [first, _] = &found;
            return Ok(found.iter().find(|file| file.exists()).unwrap_or(first).clone());
        }
    }
    let candidates = [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")];
    candidates
        .iter()
        .find(|file| file.exists())
        .cloned()
        .ok_or_else(|| format!("no file for mod {name} in {}", folder.display()))
}

fn flatten(tree: &UseTree, prefix: Vec<String>, found: &mut Vec<(Option<String>, Vec<String>)>) {
    let with = |name: &syn::Ident| [prefix.clone(), vec![name.to_string()]].concat();
    match tree {
        UseTree::Path(path) => flatten(&path.tree, with(&path.ident), found),
        UseTree::Name(name) if name.ident == "self" => found.push((prefix.last().cloned(), prefix)),
        UseTree::Name(name) => found.push((Some(name.ident.to_string()), with(&name.ident))),
        UseTree::Rename(rename) if rename.ident == "self" => {
            found.push((Some(rename.rename.to_string()), prefix))
        }
        UseTree::Rename(rename) => found.push((Some(rename.rename.to_string()), with(&rename.ident))),
        UseTree::Glob(_) => found.push((None, prefix)),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, prefix.clone(), found)),
    }
}

/// Returns the names under `[dependencies]` and `[target.*.dependencies]`, as paths spell them.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut inside = false;
    let mut names = BTreeSet::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            let section = line.trim_matches(['[', ']']);
            inside = section == "dependencies"
                || section.starts_with("target.") && section.ends_with(".dependencies");
        } else if inside && !line.starts_with('#') {
            let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
            if !name.is_empty() {
                names.insert(name.replace('-', "_"));
            }
        }
    }
    names
}
