//! The abilities of the reachable types: methods, implemented traits, derives.

use syn::{ImplItem, Item, ItemImpl, Path, Token, Type, Visibility, punctuated::Punctuated, visit::Visit};

use crate::{
    ALLOWED_TRAITS, OWN,
    foreign::segments,
    listing::{Listing, shown_attributes},
    render::{line, signature},
    tree::{Definition, Target, attributes},
};

impl Listing<'_> {
    pub(crate) fn add_impls(&mut self) {
        let krate = self.krate;
        for (module, here) in &krate.modules {
            for item in &here.items {
                let Item::Impl(block) = item else { continue };
                let Some(path) = self.owner(block, module) else { continue };
                match &block.trait_ {
                    None => self.add_methods(block, module, &path),
                    Some((of_trait, _)) => self.add_trait_impl(block, of_trait, module, &path),
                }
            }
        }
    }

    /// Returns the public path of the type that the block is about: the type itself, or, where that is of
    /// another crate (`impl From<Error> for io::Error`), the first of ours among the trait's arguments.
    fn owner(&self, block: &ItemImpl, module: &[String]) -> Option<String> {
        if let Some((of_trait, _)) = &block.trait_
            && let Some(Target::Item(definition)) = self.krate.resolve(module, &segments(of_trait))
            && self.public_path(&definition).is_none()
        {
            return None;
        }
        if let Some(definition) = self.definition(&block.self_ty, module) {
            return self.public_path(&definition).map(str::to_owned);
        }
        let arguments =
            block.trait_.iter().filter_map(|(path, _)| path.segments.last()).map(|last| &last.arguments);
        arguments
            .filter_map(|arguments| match arguments {
                syn::PathArguments::AngleBracketed(list) => Some(list.args.iter()),
                _ => None,
            })
            .flatten()
            .filter_map(|argument| match argument {
                syn::GenericArgument::Type(kind) => self.definition(kind, module),
                _ => None,
            })
            .find_map(|definition| self.public_path(&definition).map(str::to_owned))
    }

    fn definition(&self, kind: &Type, module: &[String]) -> Option<Definition> {
        match kind {
            Type::Path(path) if path.qself.is_none() => {
                match self.krate.resolve(module, &segments(&path.path))? {
                    Target::Item(definition) => Some(definition),
                    _ => None,
                }
            }
            Type::Reference(reference) => self.definition(&reference.elem, module),
            _ => None,
        }
    }

    fn add_methods(&mut self, block: &ItemImpl, module: &[String], path: &str) {
        let block_attributes = shown_attributes(&block.attrs);
        let bounds = match line(&block.generics).as_str() {
            "" => String::new(),
            generics => format!("impl{generics} {}{}: ", line(&block.self_ty), where_clause(block)),
        };
        for item in &block.items {
            let (name, visibility, text) = match item {
                ImplItem::Fn(method) => (method.sig.ident.to_string(), &method.vis, signature(&method.sig)),
                ImplItem::Const(part) => {
                    (part.ident.to_string(), &part.vis, format!("const {}: {}", part.ident, line(&part.ty)))
                }
                ImplItem::Macro(part) => {
                    let text = line(&part.mac);
                    self.lines.insert(format!("{path}  {block_attributes}expands {text}"));
                    continue;
                }
                _ => continue,
            };
            if !matches!(visibility, Visibility::Public(_)) {
                continue;
            }
            let item_path = format!("{path}::{name}");
            self.check(&item_path, module, |types| {
                types.visit_generics(&block.generics);
                match item {
                    ImplItem::Fn(method) => types.visit_signature(&method.sig),
                    ImplItem::Const(part) => types.visit_type(&part.ty),
                    _ => {}
                }
            });
            let shown = match item {
                ImplItem::Fn(method) => shown_attributes(&method.attrs),
                ImplItem::Const(part) => shown_attributes(&part.attrs),
                _ => String::new(),
            };
            self.lines.insert(format!("{item_path}  {block_attributes}{shown}{bounds}{text}"));
        }
    }

    fn add_trait_impl(&mut self, block: &ItemImpl, of_trait: &Path, module: &[String], path: &str) {
        let around = self.krate.attributes_around(module);
        let around: Vec<_> =
            around.into_iter().filter(|attribute| attribute.path().is_ident("cfg")).collect();
        let conditions = format!("{}{}", shown_attributes(&around), shown_attributes(&block.attrs));
        let header = format!(
            "{}impl{} {} for {}{}",
            if block.unsafety.is_some() { "unsafe " } else { "" },
            line(&block.generics),
            last_segment(of_trait),
            line(&block.self_ty),
            where_clause(block),
        );
        let associated: Vec<String> = block
            .items
            .iter()
            .filter_map(|item| match item {
                ImplItem::Type(part) => {
                    Some(format!("type {}{} = {};", part.ident, line(&part.generics), line(&part.ty)))
                }
                ImplItem::Const(part) => Some(format!("const {}: {};", part.ident, line(&part.ty))),
                _ => None,
            })
            .collect();
        let body =
            if associated.is_empty() { String::new() } else { format!(" {{ {} }}", associated.join(" ")) };
        self.lines.insert(format!("{path}  {conditions}{header}{body}"));

        let behind_feature = around
            .iter()
            .chain(&block.attrs)
            .any(|attribute| attribute.path().is_ident("cfg") && line(attribute).contains("feature"));
        let allowed = match self.krate.resolve(module, &segments(of_trait)) {
            Some(Target::External(krate)) => {
                (behind_feature && ALLOWED_TRAITS.contains(&krate.as_str()))
                    || OWN.contains(&(self.krate.name.as_str(), krate.as_str()))
            }
            _ => false,
        };
        let mut types = crate::foreign::ForeignTypes::in_module(self.krate, module);
        types.visit_generics(&block.generics);
        types.visit_type(&block.self_ty);
        if !allowed {
            types.visit_path(of_trait);
        }
        for item in &block.items {
            if let ImplItem::Type(part) = item {
                types.visit_type(&part.ty);
            }
        }
        let found = types.found;
        self.foreign.extend(found.into_iter().map(|krate| format!("{path}: {krate} in its {header}")));
    }

    /// Lists a derived trait like a written one: an implementation may change between the two.
    pub(crate) fn add_derives(&mut self, item: &Item, module: &[String], path: &str) {
        let name = match item {
            Item::Struct(item) => &item.ident,
            Item::Enum(item) => &item.ident,
            _ => return,
        };
        for attribute in attributes(item).iter().filter(|attribute| attribute.path().is_ident("derive")) {
            let Ok(traits) = attribute.parse_args_with(Punctuated::<Path, Token![,]>::parse_terminated)
            else {
                continue;
            };
            for derived in traits {
                self.check(&format!("{path}, derived"), module, |types| types.check_path(&derived));
                self.lines.insert(format!("{path}  impl {} for {name}", last_segment(&derived)));
            }
        }
    }
}

/// `fmt::Debug` and `Debug` are the same trait.
fn last_segment(path: &Path) -> String {
    path.segments.last().map(line).unwrap_or_default()
}

fn where_clause(block: &ItemImpl) -> String {
    let Some(mut clause) = block.generics.where_clause.clone() else { return String::new() };
    clause.predicates.pop_punct();
    if clause.predicates.is_empty() { String::new() } else { format!(" {}", line(&clause)) }
}
