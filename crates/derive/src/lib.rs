//! The derive macro `Key` of `forebay-cache`, which re-exports and documents it.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Attribute, Data, DeriveInput, Error, Fields, Index, Member, Path, parse_quote};

/// Implements the trait `Key` of `forebay-cache`; see there.
#[proc_macro_derive(Key, attributes(key))]
pub fn derive_key(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let expanded = syn::parse(input).and_then(expand);
    expanded.unwrap_or_else(Error::into_compile_error).into()
}

fn expand(mut input: DeriveInput) -> syn::Result<TokenStream> {
    let cache = crate_path(&input.attrs)?;
    let owner = owner_field(&input.data)?.map(|field| {
        quote! {
            #[inline]
            fn owner(&self) -> #cache::OwnerId {
                ::core::convert::Into::<#cache::OwnerId>::into(self.#field)
            }
        }
    });
    let parameters: Vec<_> =
        input.generics.type_params().map(|parameter| parameter.ident.clone()).collect();
    let bounds = input.generics.make_where_clause();
    for parameter in parameters {
        bounds.predicates.push(parse_quote!(#parameter: #cache::Key));
    }
    let name = &input.ident;
    let (parameters, arguments, bounds) = input.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #parameters #cache::Key for #name #arguments #bounds {
            #owner
        }
    })
}

/// One word in `#[key(..)]`.
enum Word {
    Owner,
    Crate(Path),
}

/// The words of all `#[key(..)]`, each with its attribute.
fn words(attributes: &[Attribute]) -> syn::Result<Vec<(&Attribute, Word)>> {
    let mut words = Vec::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("key")) {
        attribute.parse_nested_meta(|meta| {
            let word = if meta.path.is_ident("owner") {
                Word::Owner
            } else if meta.path.is_ident("crate") {
                Word::Crate(meta.value()?.call(Path::parse_mod_style)?)
            } else {
                return Err(meta.error(
                    "unknown word: write `#[key(owner)]` at a field, or `#[key(crate = path)]` at \
                     the type",
                ));
            };
            words.push((attribute, word));
            Ok(())
        })?;
    }
    Ok(words)
}

/// The path of `forebay-cache`, `::forebay_cache` unless the type names another.
fn crate_path(attributes: &[Attribute]) -> syn::Result<Path> {
    let mut path: Path = parse_quote!(::forebay_cache);
    for (attribute, word) in words(attributes)? {
        match word {
            Word::Crate(other) => path = other,
            Word::Owner => {
                let text = "the owner is a field: write `#[key(owner)]` before it";
                return Err(Error::new_spanned(attribute, text));
            }
        }
    }
    Ok(path)
}

/// The field that names the key's owner, if there is one.
fn owner_field(data: &Data) -> syn::Result<Option<Member>> {
    let mut owner = None;
    for (fields, is_struct) in all_fields(data)? {
        for (number, field) in fields.iter().enumerate() {
            for (attribute, word) in words(&field.attrs)? {
                let problem = match word {
                    Word::Crate(_) => "the path of the crate belongs before the type",
                    Word::Owner if !is_struct => {
                        "an enum has no owner field; implement `Key` by hand to give it an owner"
                    }
                    Word::Owner if owner.is_some() => {
                        "a key has one owner, and another field is it"
                    }
                    Word::Owner => {
                        let member = || Member::Unnamed(Index::from(number));
                        owner = Some(field.ident.clone().map_or_else(member, Member::Named));
                        continue;
                    }
                };
                return Err(Error::new_spanned(attribute, problem));
            }
        }
    }
    Ok(owner)
}

/// The fields of a struct or of each variant of an enum, and whether it is a struct.
fn all_fields(data: &Data) -> syn::Result<Vec<(&Fields, bool)>> {
    match data {
        Data::Struct(data) => Ok(vec![(&data.fields, true)]),
        Data::Enum(data) => Ok(data.variants.iter().map(|v| (&v.fields, false)).collect()),
        Data::Union(data) => {
            let text = "a union cannot be compared: a key is a struct or an enum";
            Err(Error::new_spanned(data.union_token, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use syn::{DeriveInput, parse_quote};

    use super::expand;

    fn expanded(input: DeriveInput) -> String {
        expand(input).map_or_else(|error| error.to_string(), |tokens| tokens.to_string())
    }

    #[test]
    fn a_key_may_have_parameters_an_owner_and_another_path() {
        let plain = expanded(parse_quote!(
            struct Plain(u64);
        ));
        assert_eq!(plain, "# [automatically_derived] impl :: forebay_cache :: Key for Plain { }");
        let owned = expanded(parse_quote!(
            #[key(crate = forebay::cache)]
            struct Owned<T, const N: usize>(T, #[key(owner)] u16, [u8; N]);
        ));
        assert!(owned.contains("forebay :: cache :: Key for Owned < T , N > where T :"), "{owned}");
        assert!(owned.contains("(self . 1)"), "{owned}");
        let named = expanded(parse_quote!(
            struct Named {
                #[key(owner)]
                pool: u16,
            }
        ));
        assert!(named.contains("(self . pool)"), "{named}");
        assert!(
            expanded(parse_quote!(
                enum Kind {
                    A(u8),
                    B,
                }
            ))
            .contains("Key for Kind")
        );
    }

    #[test]
    fn errors_name_the_way_out() {
        let error = |input: DeriveInput, text: &str| {
            let error = expanded(input);
            assert!(error.contains(text), "{error}");
        };
        error(
            parse_quote!(
                struct A(#[key(owner)] u16, #[key(owner)] u16);
            ),
            "has one owner",
        );
        error(
            parse_quote!(
                struct A(#[key(onwer)] u16);
            ),
            "unknown word: write `#[key(owner)]`",
        );
        error(
            parse_quote!(
                enum A {
                    B(#[key(owner)] u16),
                }
            ),
            "implement `Key` by hand",
        );
        error(parse_quote!(union A { b: u16 }), "a key is a struct or an enum");
        error(
            parse_quote!(
                #[key(owner)]
                struct A(u16);
            ),
            "write `#[key(owner)]` before it",
        );
        error(
            parse_quote!(
                struct A(#[key(crate = b)] u16);
            ),
            "belongs before the type",
        );
    }
}
