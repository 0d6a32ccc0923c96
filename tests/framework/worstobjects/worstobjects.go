// Package worstobjects has the JSON of objects that cost most to read: as large as an API server admits, of very many small parts, or nested
// very deeply. Tenants can write most of them; the schemas of the API server reject the others.
package worstobjects

import (
	"fmt"
	"iter"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// MaxSize is how much text an object has at most, in bytes: the limit of etcd for a request.
	MaxSize = 1500 << 10
	// maxAnnotations is the limit of the API server for the annotations of an object, in bytes.
	maxAnnotations = 256 << 10
	// room is how much text a field has, so that there is some for the other fields, in bytes.
	room = MaxSize - 1000

	// Namespace is that of the objects.
	Namespace = "team"
	// Name is that of the objects.
	Name = "app"
)

// Kinds are the kinds of the objects.
var Kinds = []schema.GroupVersionKind{
	{Group: "pulumi.com", Version: "v1", Kind: "Stack"},
	{Group: "pulumi.com", Version: "v1", Kind: "Program"},
	{Group: "auto.pulumi.com", Version: "v1alpha1", Kind: "Workspace"},
	{Group: "auto.pulumi.com", Version: "v1alpha1", Kind: "Update"},
	{Group: "auto.pulumi.com", Version: "v1alpha1", Kind: "Approval"},
	{Group: "source.toolkit.fluxcd.io", Version: "v1", Kind: "GitRepository"},
	{Group: "apps", Version: "v1", Kind: "StatefulSet"},
	{Version: "v1", Kind: "Pod"},
	{Version: "v1", Kind: "Service"},
	{Version: "v1", Kind: "Secret"},
	{Version: "v1", Kind: "ConfigMap"},
}

// object is the JSON of an object: what its fields have besides the names.
type object struct{ metadata, spec, other string }

// Of returns the JSON of the objects of the kind, by what is in them.
func Of(kind schema.GroupVersionKind) iter.Seq2[string, string] {
	return func(yield func(name, text string) bool) {
		for _, objects := range []map[string]object{ofEveryKind(), ofKind()[kind.Kind]} {
			for name, object := range objects {
				text := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"namespace":%q,"uid":"1","generation":1%s},"spec":{%s}%s}`,
					kind.GroupVersion(), kind.Kind, Name, Namespace, object.metadata, object.spec, object.other)
				if !yield(name, text) {
					return
				}
			}
		}
	}
}

// ofEveryKind and ofKind return the objects. They are made when they are needed first: a test binary, which also runs as the supervisor of
// each process of a test, would spend a second on them at its start.
var ofEveryKind = sync.OnceValue(func() map[string]object {
	return map[string]object{
		"labels":         {metadata: `,"labels":` + filled("{}", room, func(i int) string { return fmt.Sprintf(`"%x":""`, i) })},
		"annotations":    {metadata: `,"annotations":` + filled("{}", maxAnnotations, func(i int) string { return fmt.Sprintf(`"%x":""`, i) })},
		"owners":         {metadata: `,"ownerReferences":` + filled("[]", room, same("{}"))},
		"finalizers":     {metadata: `,"finalizers":` + filled("[]", room, same(`"a/b"`))},
		"managed fields": {metadata: `,"managedFields":[{"fieldsV1":` + filled("{}", room, func(i int) string { return fmt.Sprintf(`"f:%x":{}`, i) }) + `}]`},
		"conditions": {other: `,"status":{"conditions":` +
			filled("[]", room, func(i int) string { return fmt.Sprintf(`{"type":"%d","status":"True","reason":"A","message":""}`, i) }) + `}`},
	}
})

var ofKind = sync.OnceValue(func() map[string]map[string]object {
	return map[string]map[string]object{
		"Stack": {
			"numbers in 900 objects, one in the other": {spec: config(nested(900, filled("[]", 200_000, same("0"))))},
			"objects, one in the other":                {spec: config(nested(room/7, "0"))},
			"lists, one in the other":                  {spec: config(strings.Repeat("[", room/2-20) + strings.Repeat("]", room/2-20))},
			"thousands of nested objects":              {spec: `"config":` + filled("{}", room, func(i int) string { return fmt.Sprintf(`"%d":`, i) + nested(60, "0") })},
			"a long text":                              {spec: config(`"` + strings.Repeat("a", room-20) + `"`)},
			"a text of escaped backslashes":            {spec: config(`"` + strings.Repeat(`\\`, room/2-20) + `"`)},
			"a text of quotation marks":                {spec: config(`"` + strings.Repeat(`\"`, room/2-20) + `"`)},
			"numbers":                                  {spec: config(filled("[]", room, same("0")))},
			"empty texts":                              {spec: `"targets":` + filled("[]", room, same(`""`))},
			"as many texts as are not too many":        {spec: `"targets":` + filled("[]", 700_000, same(`""`))},
			"references":                               {spec: `"envRefs":` + filled("{}", room, func(i int) string { return fmt.Sprintf(`"%x":{}`, i) })},
			"references of falling sizes": {spec: `"envRefs":` +
				filled("{}", room, func(i int) string { return fmt.Sprintf(`"%06x":{"type":"%s"}`, i, strings.Repeat("x", 60-i/600)) })},
			"as many Secrets as the cache keeps": {spec: `"envSecrets":` + filled("[]", 12_000, func(i int) string { return fmt.Sprintf(`"%03x"`, i) })},
			"as many dependencies as the cache keeps": {spec: `"dependsOn":` +
				filled("[]", 14_000, func(i int) string { return fmt.Sprintf(`{"name":"%03x","readyExpr":"true"}`, i) })},
			"as many conditions as the cache keeps": {other: `,"status":{"conditions":` +
				filled("[]", 16_000, func(i int) string { return fmt.Sprintf(`{"type":"%d","status":"True","reason":"A","message":""}`, i) }) + `}`},
			"tolerations":                        {spec: template(pod("tolerations", filled("[]", room-100, same("{}"))))},
			"containers":                         {spec: template(pod("containers", filled("[]", room-100, named)))},
			"containers in a small object":       {spec: template(pod("containers", filled("[]", 60_000, named)))},
			"empty containers in a small object": {spec: template(pod("containers", filled("[]", 12_000, same("{}"))))},
		},
		"Workspace": {
			"tolerations": {spec: pod("tolerations", filled("[]", room, same("{}")))},
			"containers":  {spec: pod("containers", filled("[]", room, named))},
			"configuration": {spec: `"stacks":[{"name":"dev","config":` +
				filled("[]", room, func(i int) string { return fmt.Sprintf(`{"key":"%x"}`, i) }) + `}]`},
			"nested configuration": {spec: `"stacks":[{"name":"dev","config":[{"key":"a","value":` + nested(900, filled("[]", room/2, same("0"))) + `}]}]`},
		},
		"Update":   {"targets": {spec: `"target":` + filled("[]", room, same(`""`))}},
		"Approval": {"a long text": {spec: `"reason":"` + strings.Repeat("a", room) + `"`}},
		"Program": {
			"resources": {other: `,"program":{"resources":` + filled("{}", room, func(i int) string { return fmt.Sprintf(`"%x":{}`, i) }) + `}`},
			"nested":    {other: `,"program":{"outputs":{"a":` + nested(900, filled("[]", room/2, same("0"))) + `}}`},
		},
		"GitRepository": {
			"sources to include": {spec: `"include":` + filled("[]", room, func(i int) string { return fmt.Sprintf(`{"repository":{"name":"%x"}}`, i) })},
			"metadata of the artifact": {other: `,"status":{"artifact":{"url":"http://a/b","digest":"sha256:0","metadata":` +
				filled("{}", room, func(i int) string { return fmt.Sprintf(`"%x":""`, i) }) + `}}`},
			"a nested ref": {spec: `"ref":` + nested(900, filled("[]", room/2, same("0")))},
		},
		"StatefulSet": {"containers": {spec: `"template":{"metadata":{"annotations":` +
			filled("{}", maxAnnotations, func(i int) string { return fmt.Sprintf(`"%x":""`, i) }) + `},"spec":{"containers":` + filled("[]", room/2, named) + `}}`}},
		"Pod": {
			"containers": {spec: `"containers":` + filled("[]", room, named)},
			"statuses of containers": {other: `,"status":{"containerStatuses":` +
				filled("[]", room, func(i int) string { return fmt.Sprintf(`{"name":"%x"}`, i) }) + `}`},
		},
	}
})

// filled returns a list or an object with many items between the brackets, of at most that many bytes.
func filled(brackets string, bytes int, item func(i int) string) string {
	var text strings.Builder
	text.WriteByte(brackets[0])
	for i := 0; ; i++ {
		next := item(i)
		if text.Len()+len(next)+2 > bytes {
			return strings.TrimSuffix(text.String(), ",") + brackets[1:]
		}
		text.WriteString(next + ",")
	}
}

func same(item string) func(int) string { return func(int) string { return item } }

func named(i int) string { return fmt.Sprintf(`{"name":"%x"}`, i) }

// nested returns a value in that many objects, one in the other.
func nested(objects int, value string) string {
	return strings.Repeat(`{"a":`, objects) + value + strings.Repeat("}", objects)
}

func config(value string) string { return `"stack":"dev","config":{"a":` + value + `}` }

func pod(field, value string) string {
	return `"podTemplate":{"spec":{"` + field + `":` + value + `}}`
}

func template(workspace string) string { return `"workspaceTemplate":{"spec":{` + workspace + `}}` }
