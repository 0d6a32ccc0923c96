package outputobject_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/outputobject"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

var cluster *controlplane.ControlPlane

func TestMain(m *testing.M) {
	os.Exit(controlplane.RunTests(m, controlplane.Options{}, func(cp *controlplane.ControlPlane) error {
		cluster = cp
		return nil
	}))
}

// fixture is a namespace with a Stack that writes objects.
type fixture struct {
	*WithT
	t         *testing.T
	namespace string
	stack     *pulumiv1.Stack
	client    client.Client
	writer    *outputobject.Writer
	// before, if it is set, is called before each request of the writer that changes something.
	before func(method string)
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{WithT: NewWithT(t), t: t}
	var err error
	f.client, err = client.New(cluster.Config(), client.Options{})
	f.Expect(err).NotTo(HaveOccurred())
	namespace := &corev1.Namespace{GenerateName: "outputs-"}
	f.Expect(f.client.Create(t.Context(), namespace)).To(Succeed())
	f.namespace = namespace.Name
	f.stack = &pulumiv1.Stack{Namespace: f.namespace, Name: "network", UID: "11111111-2222-3333-4444-555555555555"}
	f.writer = f.as(cluster.Config())
	return f
}

// roundTripper calls a function before each request.
type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// as returns a Writer with the rights of the configuration.
func (f *fixture) as(config *rest.Config) *outputobject.Writer {
	f.t.Helper()
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if before := f.before; before != nil && request.Method != http.MethodGet {
				f.before = nil
				before(request.Method)
			}
			return next.RoundTrip(request)
		})
	})
	http, err := rest.HTTPClientFor(config)
	f.Expect(err).NotTo(HaveOccurred())
	// The controller may read Secrets and ConfigMaps everywhere.
	writer, err := outputobject.NewWriter(config, http, f.client)
	f.Expect(err).NotTo(HaveOccurred())
	return writer
}

func (f *fixture) object(kind pulumiv1.OutputObjectKind, data map[string]string) *outputobject.Object {
	object := &outputobject.Object{Kind: kind, Namespace: f.namespace, Name: "net", Data: map[string][]byte{}}
	for key, value := range data {
		object.Data[key] = []byte(value)
	}
	return object
}

func (f *fixture) write(object *outputobject.Object, known outputobject.Version) outputobject.Version {
	f.t.Helper()
	version, err := f.writer.Write(f.t.Context(), f.stack, object, known)
	f.Expect(err).NotTo(HaveOccurred())
	return version
}

func (f *fixture) secret() *corev1.Secret {
	f.t.Helper()
	secret := &corev1.Secret{}
	f.Expect(f.client.Get(f.t.Context(), types.NamespacedName{Namespace: f.namespace, Name: "net"}, secret)).To(Succeed())
	return secret
}

func (f *fixture) data() map[string]string {
	f.t.Helper()
	data := map[string]string{}
	for key, value := range f.secret().Data {
		data[key] = string(value)
	}
	return data
}

// edit is what somebody does with another field manager.
func (f *fixture) edit(object client.Object, patch string) {
	f.t.Helper()
	object.SetNamespace(f.namespace)
	object.SetName("net")
	f.Expect(f.client.Patch(f.t.Context(), object, client.RawPatch(types.MergePatchType, []byte(patch)), client.FieldOwner("kubectl-edit"))).To(Succeed())
}

func base64of(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

func TestObjectIsWrittenAndFollowsWhatIsWanted(t *testing.T) {
	f := newFixture(t)
	object := f.object(pulumiv1.OutputSecret, map[string]string{"url": "a", "old": "x"})
	object.Labels, object.Annotations = map[string]string{"team": "network"}, map[string]string{"note": "1"}
	first := f.write(object, outputobject.Version{})
	secret := f.secret()
	f.Expect(first).To(Equal(outputobject.Version{UID: secret.UID, ResourceVersion: secret.ResourceVersion}))
	f.Expect(secret.Labels).To(Equal(map[string]string{"team": "network", meta.LabelKeyWatch: "Enabled", pulumiv1.StackUIDLabel: string(f.stack.UID)}))
	f.Expect(secret.Annotations).To(Equal(map[string]string{"note": "1", pulumiv1.StackNameAnnotation: "network"}))
	f.Expect(metav1.IsControlledBy(secret, f.stack)).To(BeTrue())
	f.Expect(secret.Type).To(Equal(corev1.SecretTypeOpaque))
	f.Expect(f.write(object, first)).To(Equal(first), "nothing changes")

	// What others add stays, and keys that are no longer wanted go.
	f.edit(&corev1.Secret{}, fmt.Sprintf(`{"data": {"theirs": %q}, "metadata": {"annotations": {"theirs": "2"}}}`, base64of("z")))
	object.Data = map[string][]byte{"url": []byte("b")}
	object.Annotations, object.Retain = nil, true
	second := f.write(object, first)
	f.Expect(second.UID).To(Equal(first.UID))
	f.Expect(f.data()).To(Equal(map[string]string{"url": "b", "theirs": "z"}))
	f.Expect(f.secret().Annotations).To(Equal(map[string]string{"theirs": "2", pulumiv1.StackNameAnnotation: "network"}))
	f.Expect(f.secret().OwnerReferences).To(BeEmpty())

	// The status may be lost.
	f.Expect(f.write(object, outputobject.Version{})).To(Equal(second))
	f.Expect(f.writer.Remove(t.Context(), pulumiv1.OutputSecret, types.NamespacedName{Namespace: f.namespace, Name: "net"}, "another")).To(Succeed())
	f.Expect(f.data()).NotTo(BeEmpty(), "an object with another UID is not deleted")
	f.Expect(f.writer.Remove(t.Context(), pulumiv1.OutputSecret, types.NamespacedName{Namespace: f.namespace, Name: "net"}, second.UID)).To(Succeed())
	f.Expect(client.IgnoreNotFound(f.client.Get(t.Context(), types.NamespacedName{Namespace: f.namespace, Name: "net"}, &corev1.Secret{}))).To(Succeed())
	f.Expect(f.writer.Remove(t.Context(), pulumiv1.OutputSecret, types.NamespacedName{Namespace: f.namespace, Name: "net"}, second.UID)).To(Succeed())
}

func TestObjectThatWasChangedByHandIsRestored(t *testing.T) {
	for name, change := range map[string]func(f *fixture){
		"deleted":     func(f *fixture) { f.Expect(f.client.Delete(f.t.Context(), f.secret())).To(Succeed()) },
		"key edited":  func(f *fixture) { f.edit(&corev1.Secret{}, fmt.Sprintf(`{"data": {"a.b": %q}}`, base64of("forged"))) },
		"key removed": func(f *fixture) { f.edit(&corev1.Secret{}, `{"data": {"a.b": null}}`) },
		"labels and annotations edited": func(f *fixture) {
			f.edit(&corev1.Secret{}, `{"metadata": {"labels": {"reconcile.fluxcd.io/watch": "Disabled"}, "annotations": {"example.com/note": "2"}}}`)
		},
		"without owner": func(f *fixture) { f.edit(&corev1.Secret{}, `{"metadata": {"ownerReferences": null, "labels": null}}`) },
		"made immutable": func(f *fixture) {
			f.edit(&corev1.Secret{}, fmt.Sprintf(`{"immutable": true, "data": {"a.b": %q}}`, base64of("forged")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			object := f.object(pulumiv1.OutputSecret, map[string]string{"a.b": "right", "other": "1"})
			object.Annotations = map[string]string{"example.com/note": "1"}
			first := f.write(object, outputobject.Version{})
			change(f)
			f.write(object, first)
			f.Expect(f.data()).To(Equal(map[string]string{"a.b": "right", "other": "1"}))
			secret := f.secret()
			f.Expect(secret.Labels).To(And(HaveKeyWithValue(meta.LabelKeyWatch, "Enabled"), HaveKey(pulumiv1.StackUIDLabel)))
			f.Expect(secret.Annotations).To(HaveKeyWithValue("example.com/note", "1"))
			f.Expect(metav1.IsControlledBy(secret, f.stack)).To(BeTrue())
		})
	}
}

func TestForeignObjectIsNotChanged(t *testing.T) {
	for name, data := range map[string]map[string][]byte{
		"other keys": {"password": []byte("theirs")}, "the same key": {"url": []byte("theirs")}, "no keys": nil, "the same value": {"url": []byte("a")},
	} {
		for _, owner := range []string{"nobody", "a Deployment", "another Stack", "a Stack that is gone", "an earlier Stack of this name", "a Stack of another name"} {
			t.Run(name+" of "+owner, func(t *testing.T) {
				f := newFixture(t)
				theirs := &corev1.Secret{Namespace: f.namespace, Name: "net", Data: data}
				controlled := func(kind string) {
					theirs.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: kind, Name: "other", UID: "other", Controller: new(true)}}
				}
				switch owner {
				case "a Deployment":
					controlled("Deployment")
					theirs.Labels = map[string]string{pulumiv1.StackUIDLabel: string(f.stack.UID)}
				case "another Stack":
					controlled(pulumiv1.StackKind)
				case "a Stack that is gone":
					theirs.Labels = map[string]string{pulumiv1.StackUIDLabel: "other"}
				case "an earlier Stack of this name":
					theirs.Labels = map[string]string{pulumiv1.StackUIDLabel: "other"}
					theirs.Annotations = map[string]string{pulumiv1.StackNameAnnotation: f.stack.Name}
				case "a Stack of another name":
					theirs.Labels = map[string]string{pulumiv1.StackUIDLabel: "other"}
					theirs.Annotations = map[string]string{pulumiv1.StackNameAnnotation: "dns"}
				}
				f.Expect(f.client.Create(t.Context(), theirs)).To(Succeed())
				for _, known := range []outputobject.Version{{}, {UID: "99999999-2222-3333-4444-555555555555"}} {
					_, err := f.writer.Write(t.Context(), f.stack, f.object(pulumiv1.OutputSecret, map[string]string{"url": "a"}), known)
					f.Expect(err).To(BeAssignableToTypeOf(&outputobject.ForeignError{}))
					f.Expect(err).To(MatchError(HavePrefix("Secret net exists and ")))
					foreign, _ := errors.AsType[*outputobject.ForeignError](err)
					f.Expect(foreign.UID).To(Equal(theirs.UID))
					f.Expect(foreign.Unnamed).To(Equal(owner == "a Stack that is gone"))
					f.Expect(foreign.Earlier != "").To(Equal(owner == "an earlier Stack of this name"))
				}
				f.Expect(f.secret().ObjectMeta).To(Equal(theirs.ObjectMeta))
				f.Expect(f.secret().Data).To(Equal(theirs.Data))
			})
		}
	}
}

// Nothing in an apply means that the object must not exist. Somebody may create it after it was looked for.
func TestForeignObjectThatAppearsWhileOneIsCreatedKeepsWhatItHas(t *testing.T) {
	for name, data := range map[string]map[string]string{"other keys": {"password": "theirs"}, "the same key": {"url": "theirs"}, "the same value": {"url": "a"}} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.before = func(method string) {
				f.Expect(method).To(Equal(http.MethodPatch))
				f.Expect(f.client.Create(t.Context(), &corev1.Secret{Namespace: f.namespace, Name: "net", StringData: data})).To(Succeed())
			}
			_, err := f.writer.Write(t.Context(), f.stack, f.object(pulumiv1.OutputSecret, map[string]string{"url": "a", "more": "b"}), outputobject.Version{})
			f.Expect(err).To(MatchError(HavePrefix("Secret net exists and ")))
			_, isForeign := errors.AsType[*outputobject.ForeignError](err)
			f.Expect(isForeign).To(BeTrue())
			f.Expect(f.data()).To(Equal(data))
			f.Expect(f.secret().Labels).To(BeEmpty())
			f.Expect(f.secret().OwnerReferences).To(BeEmpty())
		})
	}
}

func TestTypeOfASecretCanChange(t *testing.T) {
	f := newFixture(t)
	object := f.object(pulumiv1.OutputSecret, map[string]string{"username": "u", "password": "p"})
	first := f.write(object, outputobject.Version{})
	object.Type = corev1.SecretTypeBasicAuth
	second := f.write(object, first)
	f.Expect(second.UID).NotTo(Equal(first.UID))
	f.Expect(f.secret().Type).To(Equal(corev1.SecretTypeBasicAuth))

	// An object that the API server does not accept changes nothing.
	object.Data = map[string][]byte{"username": []byte("only")}
	object.Labels = map[string]string{"team": "not valid!"}
	_, err := f.writer.Write(t.Context(), f.stack, object, second)
	f.Expect(err).To(BeAssignableToTypeOf(&outputobject.InvalidError{}))
	f.Expect(f.data()).To(Equal(map[string]string{"username": "u", "password": "p"}))
	object.Name = "new"
	_, err = f.writer.Write(t.Context(), f.stack, object, outputobject.Version{})
	f.Expect(err).To(BeAssignableToTypeOf(&outputobject.InvalidError{}))
}

func TestConfigMapIsWrittenAsText(t *testing.T) {
	f := newFixture(t)
	f.write(f.object(pulumiv1.OutputConfigMap, map[string]string{"vpc": "vpc-ü"}), outputobject.Version{})
	written := &corev1.ConfigMap{}
	f.Expect(f.client.Get(t.Context(), types.NamespacedName{Namespace: f.namespace, Name: "net"}, written)).To(Succeed())
	f.Expect(written.Data).To(Equal(map[string]string{"vpc": "vpc-ü"}))
	f.Expect(written.BinaryData).To(BeEmpty())
}

// The documented Role is enough, and another name is refused.
func TestRoleWithNamesIsEnough(t *testing.T) {
	f := newFixture(t)
	const account = "controller"
	f.Expect(f.client.Create(t.Context(), &corev1.ServiceAccount{Namespace: f.namespace, Name: account})).To(Succeed())
	config, err := cluster.ServiceAccountConfig(t.Context(), f.namespace, account)
	f.Expect(err).NotTo(HaveOccurred())
	f.writer = f.as(config)
	object := f.object(pulumiv1.OutputSecret, map[string]string{"url": "a"})
	_, err = f.writer.Write(t.Context(), f.stack, object, outputobject.Version{})
	f.Expect(err).To(BeAssignableToTypeOf(&outputobject.ForbiddenError{}))

	identity, err := f.writer.Identity(t.Context())
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(identity).To(Equal(rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: f.namespace, Name: account}))
	role, binding := outputobject.Grant(f.stack, []*outputobject.Object{object, f.object(pulumiv1.OutputConfigMap, nil)}, identity)
	f.Expect(f.client.Create(t.Context(), role)).To(Succeed())
	f.Expect(f.client.Create(t.Context(), binding)).To(Succeed())
	var version outputobject.Version
	f.Eventually(func() error {
		version, err = f.writer.Write(t.Context(), f.stack, object, outputobject.Version{})
		return err
	}, "10s").Should(Succeed())
	f.edit(&corev1.Secret{}, fmt.Sprintf(`{"data": {"url": %q}}`, base64of("forged")))
	version = f.write(object, version)
	f.Expect(f.data()).To(Equal(map[string]string{"url": "a"}))
	object.Name = "other"
	_, err = f.writer.Write(t.Context(), f.stack, object, outputobject.Version{})
	f.Expect(err).To(BeAssignableToTypeOf(&outputobject.ForbiddenError{}))
	f.Expect(f.writer.Remove(t.Context(), object.Kind, types.NamespacedName{Namespace: f.namespace, Name: "other"}, version.UID)).
		To(BeAssignableToTypeOf(&outputobject.ForbiddenError{}))
	f.Expect(f.writer.Remove(t.Context(), object.Kind, types.NamespacedName{Namespace: f.namespace, Name: "net"}, version.UID)).To(Succeed())
}

// The API server answers with metadata only: no value comes back.
func TestAnswersHaveNoValues(t *testing.T) {
	f := newFixture(t)
	answers := ""
	config := rest.CopyConfig(cluster.Config())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil {
				content, _ := io.ReadAll(response.Body)
				answers += string(content)
				response.Body = io.NopCloser(bytes.NewReader(content))
			}
			return response, err
		})
	})
	f.writer = f.as(config)
	f.write(f.object(pulumiv1.OutputSecret, map[string]string{"url": "canary-value"}), outputobject.Version{})
	f.Expect(answers).To(ContainSubstring("PartialObjectMetadata"))
	f.Expect(answers).NotTo(ContainSubstring(base64of("canary-value")))
}

func TestRequestsEndWithTheContext(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := f.writer.Write(ctx, f.stack, f.object(pulumiv1.OutputSecret, nil), outputobject.Version{})
	f.Expect(err).To(MatchError(context.Canceled))
}
