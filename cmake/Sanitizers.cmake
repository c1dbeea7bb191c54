# ACESPEC_SANITIZE applies to everything: an uninstrumented half of a program reports what is not there.
if(ACESPEC_SANITIZE)
  add_compile_options(-fsanitize=${ACESPEC_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${ACESPEC_SANITIZE})
endif()
