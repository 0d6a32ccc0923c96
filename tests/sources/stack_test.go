package sources_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// hourly is an interval that no test waits for: what is new is announced by fetch.
var hourly = metav1.Duration{Duration: time.Hour}

func keyOf(name string) client.ObjectKey { return client.ObjectKey{Namespace: name, Name: name} }

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// create creates the objects in their order.
func create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		succeed(t, system.Client.Create(t.Context(), object))
	}
}

// namespace creates a namespace with the Secret that every Stack here uses.
func namespace(t *testing.T, name string) {
	t.Helper()
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, &corev1.Secret{
		ObjectMeta: named(name, stage.PassphraseSecret), StringData: map[string]string{stage.PassphraseKey: passphraseCanary},
	})
}

// stackOf is a Stack, in a namespace of its name, that follows a source of the kind and of its name.
func stackOf(name, kind string) *pulumiv1.Stack {
	return &pulumiv1.Stack{
		ObjectMeta: named(name, name),
		Spec: pulumiv1.StackSpec{
			Stack:   "dev",
			Backend: system.BackendURL,
			FluxSource: &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{
				APIVersion: sourcev1.GroupVersion.String(), Kind: kind, Name: name,
			}},
			EnvRefs: map[string]pulumiv1.ResourceRef{"PULUMI_CONFIG_PASSPHRASE": {
				Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: stage.PassphraseSecret, Key: stage.PassphraseKey},
			}},
		},
	}
}

// await returns the Stack of the name once it is as asked.
func await(t *testing.T, name string, is func(*pulumiv1.Stack) bool) *pulumiv1.Stack {
	t.Helper()
	stack, err := statuscheck.Await(within(t), system.Client, keyOf(name), is)
	succeed(t, err)
	return stack
}

// deployed is a Stack that is Ready at the revision.
func deployed(revision string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return statuscheck.Ready("")(stack) && stack.Status.LastAppliedRevision == revision
	}
}

// showing is a Stack that is Ready with the value of its output "x".
func showing(value string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return statuscheck.Ready("")(stack) && string(stack.Status.Outputs["x"].Raw) == value
	}
}

// fetch has source-controller look at the source now, as a Receiver does.
func fetch(t *testing.T, source client.Object) {
	t.Helper()
	before := source.DeepCopyObject().(client.Object)
	annotations := maps.Clone(source.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[meta.ReconcileRequestAnnotation] = time.Now().Format(time.RFC3339Nano)
	source.SetAnnotations(annotations)
	succeed(t, system.Client.Patch(t.Context(), source, client.MergeFrom(before)))
}

// program is a Pulumi program, in a project of the name, whose output "x" has the value.
func program(name, value string) map[string]string {
	return map[string]string{"Pulumi.yaml": "name: " + name + "\nruntime: yaml\noutputs:\n  x: " + value + "\n"}
}

// packed is the gzip-compressed tarball of files.
func packed(files map[string]string) []byte {
	var buffer bytes.Buffer
	compressed := gzip.NewWriter(&buffer)
	archive := tar.NewWriter(compressed)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		must(archive.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(files[name]))}))
		_, err := archive.Write([]byte(files[name]))
		must(err)
	}
	must(archive.Close())
	must(compressed.Close())
	return buffer.Bytes()
}

// must is for what cannot fail in memory.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
