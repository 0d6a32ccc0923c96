package command

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestThePatchOfTheQuickstartMeansTheSameInAllShells(t *testing.T) {
	g := NewWithT(t)
	g.Expect(quickstartBreak).NotTo(ContainSubstring("%")) // of cmd.exe, and of formats
	g.Expect(quickstartBreak).NotTo(MatchRegexp("[\"'`$!\\\\^]"))
	patch, err := yaml.ToJSON([]byte(quickstartBreak)) // as kubectl does
	g.Expect(err).NotTo(HaveOccurred())
	var program pulumiv1.Program
	g.Expect(json.Unmarshal(patch, &program)).To(Succeed())
	g.Expect(program.Program.Configuration).To(HaveKey("broken"))
}

func TestQuickstartSaysAtOnceThatNothingWouldCreateItsVolume(t *testing.T) {
	class := func(annotations map[string]string) client.Object {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "disk", Annotations: annotations}}
	}
	volume := func(claim string) client.Object {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: quickstartNamespace, Name: claim},
		}}
	}
	const begins = "the namespace is created"
	for name, test := range map[string]struct {
		objects   []client.Object
		forbidden bool
		says      string
	}{
		"nothing":                                {nil, false, "the cluster has no default StorageClass"},
		"a class":                                {[]client.Object{class(nil)}, false, "kubectl annotate storageclass NAME"},
		"a class that is no longer the default":  {[]client.Object{class(map[string]string{defaultClass: "false"})}, false, "no default StorageClass"},
		"a volume for another claim":             {[]client.Object{volume("other")}, false, "claim pulumi-quickstart/state"},
		"the default class":                      {[]client.Object{class(map[string]string{defaultClass: "true"})}, false, begins},
		"the default class, by its former name":  {[]client.Object{class(map[string]string{formerDefaultClass: "true"})}, false, begins},
		"a volume for the claim":                 {[]client.Object{volume(stateClaim)}, false, begins},
		"a user who may not list StorageClasses": {nil, true, begins},
		"a namespace with what an earlier run made": {[]client.Object{
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: quickstartNamespace, Labels: quickstartLabels}}}, false, "an object is created"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := newCluster(test.objects...)
			c.client = interceptor.NewClient(c.client, interceptor.Funcs{
				List: func(ctx context.Context, caller client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					if _, classes := list.(*storagev1.StorageClassList); classes && test.forbidden {
						return apierrors.NewForbidden(schema.GroupResource{Resource: "storageclasses"}, "", nil)
					}
					return caller.List(ctx, list, options...)
				},
				Create: func(_ context.Context, _ client.WithWatch, object client.Object, _ ...client.CreateOption) error {
					if _, namespace := object.(*corev1.Namespace); namespace {
						return errors.New(begins)
					}
					return errors.New("an object is created")
				},
			})
			s, _ := newSession(nil)
			NewWithT(t).Expect(s.beginQuickstart(t.Context(), c, "", time.Minute)).To(MatchError(ContainSubstring(test.says)))
		})
	}
}
