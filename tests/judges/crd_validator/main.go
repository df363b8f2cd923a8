// Prints what the API server would refuse in CustomResourceDefinitions, such as rules in CEL that cost too much.
package main

import (
	"context"
	"fmt"
	"os"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"sigs.k8s.io/yaml"
)

func main() {
	bad := 0
	for _, file := range os.Args[1:] {
		text, err := os.ReadFile(file)
		if err != nil {
			panic(err)
		}
		crd := &v1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, crd); err != nil {
			panic(err)
		}
		v1.SetDefaults_CustomResourceDefinition(crd)
		v1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
		internal := &apiextensions.CustomResourceDefinition{}
		if err := v1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, internal, nil); err != nil {
			panic(err)
		}
		internal.Status.StoredVersions = []string{internal.Spec.Versions[0].Name}
		for _, problem := range validation.ValidateCustomResourceDefinition(context.Background(), internal) {
			bad++
			fmt.Printf("%s: %s\n", file, problem)
		}
	}
	if bad > 0 {
		os.Exit(1)
	}
}
