package inputs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/references"
)

const canary = "canary-5d1f"

// objects are the Secrets and ConfigMaps that can be read, by namespace and name. reads counts the requests.
type objects struct {
	client.Reader
	all   map[string]client.Object
	reads int
}

func (o *objects) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	o.reads++
	switch found := o.all[key.String()].(type) {
	case *corev1.Secret:
		if secret, isSecret := into.(*corev1.Secret); isSecret {
			found.DeepCopyInto(secret)
			return nil
		}
	case *corev1.ConfigMap:
		if configMap, isConfigMap := into.(*corev1.ConfigMap); isConfigMap {
			found.DeepCopyInto(configMap)
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: "objects"}, key.Name)
}

// stored returns the Secret with outputs of the Update with the UID.
func stored(uid types.UID) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			OwnerReferences: []metav1.OwnerReference{{Kind: autov1alpha1.UpdateKind, UID: uid, Controller: ptr.To(true)}},
			Annotations: map[string]string{
				autov1alpha1.SecretOutputsAnnotation: `["token"]`, autov1alpha1.ShownOutputsAnnotation: `{"account": {"user": "a"}}`,
				autov1alpha1.OutputNamesAnnotation: `{"the_name": "the name"}`, autov1alpha1.OmittedOutputsAnnotation: `["huge"]`,
				autov1alpha1.UnknownOutputsAnnotation: `["unknown"]`,
			},
		},
		Data: map[string][]byte{
			"text": []byte(`"vpc-1"`), "number": []byte(`1.50`), "list": []byte(`[{"ip":"10.0.0.1"}]`), "nothing": []byte("null"), "the_name": []byte(`true`),
			"json": []byte(`"{\"a\": 1}"`), "token": []byte(`"` + canary + `"`), "account": []byte(`{"user": "a", "password": "` + canary + `"}`),
		},
	}
}

// giver returns a Stack that has given the outputs of the Update with the UID.
func giver(namespace string, uid types.UID) *pulumiv1.Stack {
	stack := &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "network", UID: "stack"}}
	stack.Status.StoredOutputs = &pulumiv1.StoredOutputs{Update: "network-1", UID: uid, Secret: "network-1-outputs"}
	return stack
}

// world returns a reader for inputs in the namespace "team", and what it reads.
func world() (*Reader, *objects) {
	reads := &objects{all: map[string]client.Object{
		"team/network-1-outputs":  stored("1"),
		"other/network-1-outputs": stored("1"),
		"team/openstack":          &corev1.Secret{Data: map[string][]byte{"id": []byte(canary)}},
		"team/settings":           &corev1.ConfigMap{Data: map[string]string{"size": "007", "tags": `{"a": [1]}`}},
	}}
	stacks := map[string]*pulumiv1.Stack{
		"team/network": giver("team", "1"), "other/network": giver("other", "1"), "team/forged": giver("team", "2"), "team/new": {}, "team/previews": {}, "team/deleted": {},
	}
	stacks["other/network"].Spec.ShareOutputs = []pulumiv1.OutputShare{
		{Namespaces: []string{"te*"}, Outputs: []string{"text", "token"}}, {Namespaces: []string{"team"}, Outputs: []string{"account"}, Secrets: true},
	}
	none := giver("team", "3")
	none.Status.StoredOutputs.Secret = ""
	stacks["team/none"] = none
	stacks["team/previews"].Spec.Preview, stacks["team/deleted"].DeletionTimestamp = true, new(metav1.Now())
	return &Reader{APIReader: reads, Namespace: "team", Scope: references.Scope{OtherNamespaces: true},
		Stacks: func(_ context.Context, name types.NamespacedName) (*pulumiv1.Stack, error) {
			return stacks[name.String()], nil
		},
	}, reads
}

func of(stack, output, path string) autov1alpha1.Input {
	namespace, name, _ := strings.Cut(stack, "/")
	return autov1alpha1.Input{Key: "k", Stack: &autov1alpha1.StackOutput{Namespace: namespace, Name: name, Output: output, Path: path}}
}

func with(input autov1alpha1.Input, change func(*autov1alpha1.Input)) autov1alpha1.Input {
	change(&input)
	return input
}

func text(value string) *agentpb.ConfigItem {
	return &agentpb.ConfigItem{Key: "k", Value: &agentpb.ConfigItem_Text{Text: value}}
}

func structured(value string) *agentpb.ConfigItem {
	return &agentpb.ConfigItem{Key: "k", Value: &agentpb.ConfigItem_Json{Json: value}}
}

func secret(item *agentpb.ConfigItem) *agentpb.ConfigItem {
	item.Secret = true
	return item
}

func TestInputHasTheValueOfItsSource(t *testing.T) {
	fallback := func(raw string) func(*autov1alpha1.Input) {
		return func(input *autov1alpha1.Input) { input.Default = &apiextensionsv1.JSON{Raw: []byte(raw)} }
	}
	for name, test := range map[string]struct {
		input autov1alpha1.Input
		want  *agentpb.ConfigItem
	}{
		"text":                        {of("/network", "text", ""), text("vpc-1")},
		"number keeps its digits":     {of("/network", "number", ""), structured("1.50")},
		"path":                        {of("/network", "list", "[0].ip"), text("10.0.0.1")},
		"list":                        {of("/network", "list", ""), structured(`[{"ip":"10.0.0.1"}]`)},
		"name that is no key":         {of("/network", "the name", ""), structured("true")},
		"text that is parsed":         {with(of("/network", "json", ""), func(i *autov1alpha1.Input) { i.JSON = true }), structured(`{"a": 1}`)},
		"secret":                      {of("/network", "token", ""), secret(text(canary))},
		"part of what has a secret":   {of("/network", "account", "user"), secret(text("a"))},
		"made secret":                 {with(of("/network", "text", ""), func(i *autov1alpha1.Input) { i.AsSecret = true }), secret(text("vpc-1"))},
		"of another namespace":        {of("other/network", "text", ""), text("vpc-1")},
		"secret of another namespace": {of("other/network", "account", "password"), secret(text(canary))},
		"Secret":                      {autov1alpha1.Input{Key: "k", Secret: &autov1alpha1.KeyReference{Name: "openstack", Key: "id"}}, secret(text(canary))},
		"ConfigMap":                   {autov1alpha1.Input{Key: "k", ConfigMap: &autov1alpha1.KeyReference{Name: "settings", Key: "size"}}, text("007")},
		"ConfigMap that is parsed": {autov1alpha1.Input{Key: "k", JSON: true, ConfigMap: &autov1alpha1.KeyReference{Name: "settings", Key: "tags"}},
			structured(`{"a": [1]}`)},
		"default for no Stack":                   {with(of("/gone", "text", ""), fallback(`"x"`)), text("x")},
		"default for no outputs":                 {with(of("/none", "text", ""), fallback(`[1]`)), structured("[1]")},
		"default for a Stack that only previews": {with(of("/previews", "text", ""), fallback(`"x"`)), text("x")},
		"default for a Stack that is deleted":    {with(of("/deleted", "text", ""), fallback(`"x"`)), text("x")},
		"default for no output":                  {with(of("/network", "vpc", ""), fallback(`"x"`)), text("x")},
		"default for null":                       {with(of("/network", "nothing", ""), fallback(`""`)), text("")},
		"default for no path":                    {with(of("/network", "list", "[7]"), fallback(`"x"`)), text("x")},
		"default for a Secret":                   {autov1alpha1.Input{Key: "k", Secret: &autov1alpha1.KeyReference{Name: "gone", Key: "id"}, Default: &apiextensionsv1.JSON{Raw: []byte(`"x"`)}}, secret(text("x"))},
		"default that is not used":               {with(of("/network", "text", ""), fallback(`"x"`)), text("vpc-1")},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			reader, _ := world()
			item, err := reader.Item(t.Context(), &test.input)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(item.String()).To(Equal(test.want.String()))
		})
	}
}

func TestInputWithoutAValueSaysWhy(t *testing.T) {
	for name, test := range map[string]struct {
		input   autov1alpha1.Input
		want    any
		message string
	}{
		"no Stack":             {of("/gone", "text", ""), new(*MissingError), `waiting for stack "gone", which input "k" needs: it does not exist`},
		"never updated":        {of("/new", "text", ""), new(*MissingError), "no stored outputs"},
		"no output":            {of("/network", "vpc", ""), new(*MissingError), `waiting for output "vpc" in stack "network", which input "k" needs: the stack has no output "vpc"`},
		"not known":            {of("/network", "unknown", ""), new(*MissingError), `the value of the output "unknown" is not known`},
		"nothing at the path":  {of("/network", "list", "[0].port"), new(*MissingError), `nothing at the path "[0].port"`},
		"null":                 {of("/network", "nothing", ""), new(*MissingError), "it is null"},
		"too large":            {of("/network", "huge", ""), new(*InvalidError), "too large to be stored"},
		"no path":              {of("/network", "list", "[x"), new(*InvalidError), "the path cannot be read"},
		"another's Secret":     {of("/forged", "text", ""), new(*MissingError), "is gone"},
		"not shared":           {of("other/network", "number", ""), new(*DeniedError), `Stack other/network does not share output "number" with namespace team`},
		"not there":            {of("other/network", "absent", ""), new(*DeniedError), `Stack other/network does not share output "absent" with namespace team`},
		"no foreign Stack":     {of("other/gone", "text", ""), new(*DeniedError), `Stack other/gone does not share output "text" with namespace team`},
		"secret is not shared": {of("other/network", "token", ""), new(*DeniedError), "which is secret or has a secret part"},
		"not JSON":             {autov1alpha1.Input{Key: "k", JSON: true, Secret: &autov1alpha1.KeyReference{Name: "openstack", Key: "id"}}, new(*InvalidError), `the value of input "k" is not JSON`},
		"no source":            {autov1alpha1.Input{Key: "k"}, new(*InvalidError), "names neither"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			reader, _ := world()
			_, err := reader.Item(t.Context(), &test.input)
			g.Expect(errors.As(err, test.want)).To(BeTrue(), "%T %v", err, err)
			g.Expect(err.Error()).To(And(ContainSubstring(test.message), Not(ContainSubstring(canary))))
			test.input.Default = &apiextensionsv1.JSON{Raw: []byte(`"x"`)}
			_, err = reader.Item(t.Context(), &test.input)
			_, isMissing := test.want.(**MissingError)
			willBeThere := test.input.Stack != nil && (test.input.Stack.Name == "new" || test.input.Stack.Name == "forged" || test.input.Stack.Output == "unknown")
			g.Expect(err == nil).To(Equal(isMissing && !willBeThere), "a default is only for what is missing, and not for what is not stored now")
		})
	}
	g := NewWithT(t)
	reader, reads := world()
	reader.Scope = references.Scope{}
	foreign := of("other/network", "text", "")
	_, err := reader.Item(t.Context(), &foreign)
	g.Expect(err).To(MatchError(ContainSubstring("references to another namespace are not allowed")))
	g.Expect(reads.reads).To(BeZero())
}

func TestEachObjectIsReadOnce(t *testing.T) {
	g := NewWithT(t)
	reader, reads := world()
	for range 5 {
		for _, output := range []string{"text", "list", "token"} {
			input := of("/network", output, "")
			_, err := reader.Item(t.Context(), &input)
			g.Expect(err).NotTo(HaveOccurred())
		}
		_, err := reader.Value(t.Context(), references.ConfigMap, "settings", "size", "it")
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(reads.reads).To(Equal(2))
	keys := KeysOf("team", []autov1alpha1.Input{of("/network", "text", ""), of("/network", "list", "")})
	g.Expect(reader.Versions(keys)).To(HaveLen(1))
}

func TestIDsOfValuesDifferWithEverythingThatPulumiSees(t *testing.T) {
	g := NewWithT(t)
	key := []byte("key")
	seen := map[string]bool{}
	for _, item := range []*agentpb.ConfigItem{
		text("1"), structured("1"), secret(text("1")), text("2"), {Key: "other", Value: text("1").Value}, {Key: "k", Path: true, Value: text("1").Value},
	} {
		seen[Digest(ValueIDs(key, []*agentpb.ConfigItem{item}))] = true
	}
	seen[Digest(ValueIDs([]byte("another"), []*agentpb.ConfigItem{text("1")}))] = true
	g.Expect(seen).To(HaveLen(7))

	before := Digest(ValueIDs(key, []*agentpb.ConfigItem{{Key: "a", Value: text("1").Value}, {Key: "b", Value: text("1").Value}}))
	now := ValueIDs(key, []*agentpb.ConfigItem{{Key: "a", Value: text("1").Value}, {Key: "b", Value: text("2").Value}})
	g.Expect(Changed(now, before)).To(Equal([]string{"b"}))
	g.Expect(Changed(now[:1], before)).To(BeEmpty())
}

func TestOnlyWhatHasAnotherVersionIsNotKnown(t *testing.T) {
	g := NewWithT(t)
	list := []autov1alpha1.Input{
		of("/network", "text", ""),
		{Key: "size", ConfigMap: &autov1alpha1.KeyReference{Name: "settings", Key: "size"}},
		{Key: "id", Secret: &autov1alpha1.KeyReference{Name: "settings", Key: "id"}},
	}
	configMap := references.VersionOf(references.ConfigMap, &metav1.ObjectMeta{Namespace: "team", Name: "settings"})
	outputs := VersionOfOutputs("team", types.NamespacedName{Namespace: "team", Name: "network"}, nil)
	g.Expect(Others("team", list, "1,2,3", []references.Version{configMap})).To(HaveLen(2))
	g.Expect(Others("team", list, "1,2,3", []references.Version{configMap, outputs})).To(Equal(map[string]ValueID{"id": {"id", "3"}}))
	g.Expect(Others("team", list, "1,2", nil)).To(BeNil(), "it has the values of other inputs")
	g.Expect(Others("team", list, "", nil)).To(BeNil())
}

func TestStoredOutputsAreReadOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		reader, reads := world()
		kept := &Stored{}
		read := func(namespace string, stack *pulumiv1.Stack) (values map[string][]byte, requests int) {
			before := reads.reads
			reader := &Reader{APIReader: reader.APIReader, Namespace: namespace, Stored: kept}
			table, _, err := reader.table(t.Context(), types.NamespacedName{Namespace: namespace, Name: "network"}, stack)
			g.Expect(err).NotTo(HaveOccurred())
			if table != nil {
				values = table.Values
			}
			return values, reads.reads - before
		}
		network := giver("team", "1")
		_, _ = read("team", network)
		_, requests := read("team", network)
		g.Expect(requests).To(Equal(1), "it could be changed")
		secret := reads.all["team/network-1-outputs"].(*corev1.Secret)
		secret.Immutable = new(true)
		_, _ = read("team", network)
		values, requests := read("team", network)
		g.Expect(requests).To(BeZero())
		g.Expect(values).To(HaveKeyWithValue("text", BeEquivalentTo(`"vpc-1"`)))

		// The status of a Stack can be made to name the Update of another namespace, or another Secret.
		values, requests = read("stranger", giver("stranger", "1"))
		g.Expect(requests).To(Equal(1))
		g.Expect(values).To(BeNil())
		_, requests = read("team", giver("team", "2"))
		g.Expect(requests).To(Equal(1))

		time.Sleep(storedFor)
		synctest.Wait()
		g.Expect(kept.secrets).To(BeNil(), "no value stays")

		secret.Data["large"] = make([]byte, 1<<20)
		for i := range 9 {
			name := fmt.Sprint("network-", i)
			reads.all["team/"+name] = secret
			many := giver("team", "1")
			many.Status.StoredOutputs.Secret = name
			_, _ = read("team", many)
		}
		g.Expect(kept.secrets.Size()).To(And(BeNumerically(">", maxStored/2), BeNumerically("<=", maxStored)))
	})
}

func TestVersionOfOutputsIsThatOfTheUpdate(t *testing.T) {
	g := NewWithT(t)
	name := types.NamespacedName{Namespace: "team", Name: "network"}
	first, second := giver("team", "1"), giver("team", "2")
	g.Expect(VersionOfOutputs("team", name, first)).To(Equal(VersionOfOutputs("team", name, giver("team", "1"))))
	g.Expect(VersionOfOutputs("team", name, first)).NotTo(Equal(VersionOfOutputs("team", name, second)))
	g.Expect(VersionOfOutputs("team", name, first)).NotTo(Equal(VersionOfOutputs("team", name, nil)))
	first.Generation, first.ResourceVersion = 7, "7"
	g.Expect(VersionOfOutputs("team", name, first)).To(Equal(VersionOfOutputs("team", name, giver("team", "1"))))
	foreign := VersionOfOutputs("other", name, first)
	first.Spec.ShareOutputs = []pulumiv1.OutputShare{{Namespaces: []string{"other"}, Outputs: []string{"a"}}}
	g.Expect(VersionOfOutputs("other", name, first)).NotTo(Equal(foreign), "another consent is another version")
}

// FuzzLiteral checks that a value that is written as JSON is that value, or its text.
func FuzzLiteral(f *testing.F) {
	for _, seed := range []string{`"a"`, `1.50`, `null`, `{"a": [1]}`, `"\u0000"`, `x`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if value, isJSON := Literal(raw); isJSON && value != string(raw) {
			t.Fatalf("%q became %q", raw, value)
		}
	})
}
