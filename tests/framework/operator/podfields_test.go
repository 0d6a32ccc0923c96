package operator_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/operator"
)

// embeddedMetadata are the fields that the operator's definitions have for metadata inside of another object.
var embeddedMetadata = []string{"annotations.*", "finalizers[]", "labels.*", "name", "namespace"}

// fieldsOf returns the paths of the JSON fields of the type that have a schema of their own, with * for the key of a map and [] for an item
// of a list.
func fieldsOf(of reflect.Type) (paths []string) {
	add := func(prefix string, of reflect.Type) {
		paths = append(paths, prefix)
		for _, path := range fieldsOf(of) {
			paths = append(paths, strings.TrimSuffix(prefix+"."+path, "."))
		}
	}
	switch of {
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[resource.Quantity](), reflect.TypeFor[intstr.IntOrString](), reflect.TypeFor[time.Time]():
		return nil
	case reflect.TypeFor[metav1.ObjectMeta]():
		return embeddedMetadata
	}
	switch of.Kind() {
	case reflect.Pointer:
		return fieldsOf(of.Elem())
	case reflect.Struct:
		for field := range of.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			inner := field.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			switch {
			case name == "" && field.Anonymous:
				paths = append(paths, fieldsOf(inner)...)
			case name == "" || name == "-":
			case inner.Kind() == reflect.Slice && inner.Elem().Kind() != reflect.Uint8:
				add(name+"[]", inner.Elem())
			case inner.Kind() == reflect.Map:
				add(name+".*", inner.Elem())
			default:
				add(name, inner)
			}
		}
	}
	return paths
}

// The operator's definitions are generated from the same types of Kubernetes. So a manifest for it may have every field of these types.
func TestPodTemplatesHaveEveryFieldOfAPod(t *testing.T) {
	g := NewWithT(t)
	fields := fieldsOf(reflect.TypeFor[corev1.PodSpec]())
	g.Expect(len(fields)).To(BeNumerically(">", 900))
	g.Expect(fields).To(ContainElement("volumes[].ephemeral.volumeClaimTemplate.metadata.labels.*"))
	for file, at := range map[string]string{
		"auto.pulumi.com_workspaces.yaml": "spec.podTemplate.spec", "pulumi.com_stacks.yaml": "spec.workspaceTemplate.spec.podTemplate.spec",
	} {
		content, err := os.ReadFile(filepath.Join(controlplane.ProductCRDs(), file))
		g.Expect(err).NotTo(HaveOccurred())
		definition := &apiextensionsv1.CustomResourceDefinition{}
		g.Expect(yaml.UnmarshalStrict(content, definition)).To(Succeed())
		for _, version := range definition.Spec.Versions {
			pod := operator.SchemaAt(version.Schema.OpenAPIV3Schema, at)
			g.Expect(pod).NotTo(BeNil())
			var missing []string
			for _, field := range fields {
				if operator.SchemaAt(pod, field) == nil {
					missing = append(missing, at+"."+field)
				}
			}
			g.Expect(missing).To(BeEmpty(), "%s %s", file, version.Name)
		}
	}
}
