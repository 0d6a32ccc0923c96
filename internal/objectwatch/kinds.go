package objectwatch

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// MaxKinds is how many kinds a Watcher watches at most: each has an informer of its own.
const MaxKinds = 16

// refusedGroups are the groups whose objects nobody may depend on. Core has Secrets, ConfigMaps and Namespaces. The others say who may do
// what in the cluster, and what the API server does with requests: whoever learns when such an object changes learns something about the
// defenses of the cluster.
var refusedGroups = map[string]string{
	"":                             "the core group",
	"admissionregistration.k8s.io": "admission",
	"apiextensions.k8s.io":         "CustomResourceDefinitions",
	"apiregistration.k8s.io":       "API services",
	"authentication.k8s.io":        "authentication",
	"authorization.k8s.io":         "authorization",
	"certificates.k8s.io":          "certificates of the cluster",
	"rbac.authorization.k8s.io":    "RBAC",
}

// ParseKinds parses kinds of the form GROUP/KIND, such as "helm.toolkit.fluxcd.io/HelmRelease". That is the order of apiVersion and kind in
// a manifest, without the version: an object can be named in each version that the cluster serves. Empty texts count as no kind.
func ParseKinds(texts []string) ([]schema.GroupKind, error) {
	var kinds []schema.GroupKind
	for _, text := range texts {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		kind, err := parseKind(text)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) > MaxKinds {
		return nil, fmt.Errorf("it has %d kinds, and may have %d", len(kinds), MaxKinds)
	}
	return kinds, nil
}

func parseKind(text string) (schema.GroupKind, error) {
	group, kind, _ := strings.Cut(text, "/")
	if kind == "" && !strings.Contains(group, ".") {
		group, kind = "", group // a kind of the core group, as in "Secret"
	}
	if name, refused := refusedGroups[group]; refused {
		return schema.GroupKind{}, fmt.Errorf("%q is not allowed: Stacks cannot depend on objects of this group (%s)", text, name)
	}
	if len(validation.IsDNS1123Subdomain(group)) > 0 || len(validation.IsDNS1035Label(strings.ToLower(kind))) > 0 {
		return schema.GroupKind{}, fmt.Errorf("%q is not of the form GROUP/KIND, such as helm.toolkit.fluxcd.io/HelmRelease", text)
	}
	return schema.GroupKind{Group: group, Kind: kind}, nil
}

// Flag returns the value of a kind in the list that ParseKinds parses.
func Flag(kind schema.GroupKind) string { return kind.Group + "/" + kind.Kind }

// errNotAllowed is returned for a kind that is not in the list. Callers ask Allows first.
var errNotAllowed = errors.New("objects of this kind are not read")
